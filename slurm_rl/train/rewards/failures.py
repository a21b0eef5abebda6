"""When failed rewards stop a run: above a share of the step, with the first one shown in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurm_rl.errors import RewardError
from slurm_rl.train.rewards.types import FailureCause, RewardResult

_SHOWN_CHARS = 300

_REMEDIES: dict[FailureCause, str] = {
    "hang": "raise reward.timeout_s, or mend the verifier that is slow on it",
    "crash": "run the verifier on this completion alone, and give the job more memory if the kernel ended it",
    "exception": "mend the verifier or the row's answer",
    "bad score": "have the verifier return a number in [0, 1]",
    "service": "read the log of the reward service, which failed on this completion alone",
}


def check_failures(results: Sequence[RewardResult], max_failure_rate: float) -> None:
    """Pass when at most `max_failure_rate` of the results failed (0.02: two in a hundred).

    Raises:
        RewardError: with the count of each cause, and completion, answer and cause of the first.
    """
    failed = [result for result in results if result.failure is not None]
    if len(failed) <= max_failure_rate * len(results):
        return
    first = failed[0]
    counts = Counter(result.failure for result in failed).most_common()
    causes = ", ".join(f"{count} {cause}" for cause, count in counts)
    raise RewardError(
        f"at most {max_failure_rate:g} of the rewards of a step may fail (reward.max_failure_rate)",
        seen=(
            f"{len(failed)} of {len(results)} failed ({causes}); first: {first.failure}, {first.detail}; "
            f"completion {_shorten(first.item.completion)}, answer {_shorten(first.item.answer)}"
        ),
        action=_remedy(first.failure),
    )


def _remedy(cause: FailureCause | None) -> str:
    """Say what helps against the first failure; the rate itself is the last thing to change."""
    helps = _REMEDIES[cause] if cause else ""
    return f"{helps}; raise reward.max_failure_rate only if such failures are expected"


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
