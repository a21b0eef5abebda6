from collections.abc import Sequence

import pytest

from slurm_rl.errors import RewardError
from slurm_rl.rewards.results import FailureCause, FailureWatch, RewardItem, RewardResult


def build_results(num: int, failures: Sequence[FailureCause]) -> list[RewardResult]:
    """Return `num` results of which the last ones failed."""
    fine = [RewardResult(item=RewardItem(completion="7", answer="7"), value=1.0) for _ in range(num - len(failures))]
    return fine + [
        RewardResult(item=RewardItem(completion=f"bad {i}", answer="8"), value=None, failure=cause, detail="words")
        for i, cause in enumerate(failures)
    ]


def test_rate_is_largest_allowed_share() -> None:
    FailureWatch(0.02).check(build_results(2000, ["hang"] * 40))
    FailureWatch(0.0).check(build_results(10, []))
    FailureWatch(0.0).check([])
    FailureWatch(1.0).check(build_results(2, ["hang", "crash"]))
    with pytest.raises(RewardError, match="1 of 1000 failed"):
        FailureWatch(0.0).check(build_results(1000, ["bad score"]))


def test_above_rate_names_counts_first_item_and_remedy() -> None:
    failures: list[FailureCause] = ["crash", *["hang"] * 20]
    with pytest.raises(RewardError) as caught:
        FailureWatch(0.02).check(build_results(100, failures))
    text = str(caught.value)
    assert "at most 0.02 of the newest rewards may fail, of 1000 or more (reward.max_failure_rate)" in text
    assert "21 of 100 failed in this step (20 hang, 1 crash), 21 of the newest 100" in text
    assert "first: crash, words; completion 'bad 0', answer '8'" in text
    assert "Next: run the verifier on this completion, and give" in text
    assert caught.value.exit_code == 1


def test_rare_hang_fails_only_its_item() -> None:
    watch = FailureWatch(0.02)
    for step in range(200):
        watch.check(build_results(32, ["hang"] * (step % 2)))  # 1 of 64
    watch.check(build_results(32, ["hang"] * 4))  # four completions of one prompt


def test_repeatedly_failing_verifier_ends_run() -> None:
    watch = FailureWatch(0.02)
    with pytest.raises(RewardError, match="21 of the newest 336"):
        for _ in range(100):
            watch.check(build_results(16, ["exception"]))


def test_old_failures_expire() -> None:
    watch = FailureWatch(0.02)
    for _ in range(5):
        watch.check(build_results(500, ["hang"] * 20))
        watch.check(build_results(1000, []))


def test_step_without_reward_ends_run() -> None:
    with pytest.raises(RewardError, match="never all of a step"):
        FailureWatch(0.5).check(build_results(8, ["hang"] * 8))


def test_failure_watch_ignores_bad_references() -> None:
    watch = FailureWatch(0.02)
    for _ in range(20):
        watch.check(build_results(100, ["reference"] * 50))
    with pytest.raises(RewardError, match=r"never all of a step.*Next: correct the rows' reference answers"):
        watch.check(build_results(8, ["reference"] * 8))


def test_long_completion_is_truncated_in_message() -> None:
    result = RewardResult(
        item=RewardItem(completion="x" * 10_000, answer="7"), value=None, failure="exception", detail="words"
    )
    with pytest.raises(RewardError) as caught:
        FailureWatch(0.0).check([result])
    assert len(str(caught.value)) < 1000
