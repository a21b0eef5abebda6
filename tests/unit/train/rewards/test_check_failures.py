from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurm_rl.errors import RewardError
from slurm_rl.train.rewards.failures import check_failures
from slurm_rl.train.rewards.types import FailureCause, RewardItem, RewardResult


def build_results(num: int, failures: Sequence[FailureCause]) -> list[RewardResult]:
    """`num` results of which the last ones failed."""
    fine = [RewardResult(item=RewardItem(completion="7", answer="7"), value=1.0) for _ in range(num - len(failures))]
    return fine + [
        RewardResult(item=RewardItem(completion=f"bad {i}", answer="8"), value=None, failure=cause, detail="words")
        for i, cause in enumerate(failures)
    ]


def test_up_to_the_rate_passes() -> None:
    check_failures(build_results(100, ["hang", "crash"]), 0.02)
    check_failures(build_results(10, []), 0.0)
    check_failures([], 0.0)
    check_failures(build_results(2, ["hang", "crash"]), 1.0)


def test_above_the_rate_names_counts_first_item_and_remedy() -> None:
    with pytest.raises(RewardError) as caught:
        check_failures(build_results(100, ["crash", "hang", "hang"]), 0.02)
    text = str(caught.value)
    assert "at most 0.02 of the rewards of a step may fail (reward.max_failure_rate)" in text
    assert "3 of 100 failed (2 hang, 1 crash); first: crash, words; completion 'bad 0', answer '8'" in text
    assert "Next: run the verifier on this completion alone" in text
    assert caught.value.exit_code == 1


def test_a_rate_of_zero_allows_none() -> None:
    with pytest.raises(RewardError, match="1 of 1000 failed"):
        check_failures(build_results(1000, ["bad score"]), 0.0)


def test_a_long_completion_is_cut_in_the_message() -> None:
    result = RewardResult(
        item=RewardItem(completion="x" * 10_000, answer="7"), value=None, failure="exception", detail="words"
    )
    with pytest.raises(RewardError) as caught:
        check_failures([result], 0.0)
    assert len(str(caught.value)) < 1000
