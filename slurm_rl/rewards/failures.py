"""When failed rewards stop a run: above a share of the newest ones, with the first one shown in full."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from slurm_rl.errors import RewardError
from slurm_rl.rewards.results import FailureCause, RewardResult

_SHOWN_CHARS = 300
_MIN_REWARDS = 1000

_REMEDIES: dict[FailureCause, str] = {
    "hang": "raise reward.timeout_s, or mend the verifier that is slow on it",
    "crash": "run the verifier on this completion alone, and give the job more memory if the kernel ended it",
    "exception": "mend the verifier or the row's answer",
    "bad score": "have the verifier return a number in [0, 1]",
    "service": "read the log of the reward service, which failed on this completion alone",
}


class FailureWatch:
    """Puts up with rewards that fail now and then, and not with a reward that is broken.

    Counted are the newest whole steps with 1,000 rewards or more between them. Of these, or of 1,000 while there are
    fewer, `max_failure_rate` may fail: at 0.02 a hang costs its item however small a step is, and so does a prompt
    whose 16 completions all hang, but a verifier that fails on every twentieth item ends the run after some 400. A step
    without a single reward ends it at once: there is nothing to learn. A resumed run begins to count anew.
    """

    def __init__(self, max_failure_rate: float) -> None:
        self.max_failure_rate = max_failure_rate
        self._steps: deque[tuple[int, int]] = deque()
        """(failed, all) of each step that counts."""

    def check(self, results: Sequence[RewardResult]) -> None:
        """Count the rewards of one step.

        Raises:
            RewardError: with the count of each cause, and completion, answer and cause of the first.
        """
        failed = [result for result in results if result.failure is not None]
        self._steps.append((len(failed), len(results)))
        while sum(total for _, total in self._steps) - self._steps[0][1] >= _MIN_REWARDS:
            self._steps.popleft()
        num_failed, num_rewards = (sum(counts) for counts in zip(*self._steps, strict=True))
        is_over = num_failed > self.max_failure_rate * max(num_rewards, _MIN_REWARDS)
        if failed and (is_over or (len(failed) == len(results) and self.max_failure_rate < 1)):
            raise self._explain(failed, len(results), num_failed, num_rewards)

    def _explain(
        self, failed: Sequence[RewardResult], num_results: int, num_failed: int, num_rewards: int
    ) -> RewardError:
        first = failed[0]
        counts = Counter(result.failure for result in failed).most_common()
        causes = ", ".join(f"{count} {cause}" for cause, count in counts)
        return RewardError(
            f"at most {self.max_failure_rate:g} of the newest rewards may fail, of {_MIN_REWARDS} or more "
            "(reward.max_failure_rate), and never all of a step",
            seen=(
                f"{len(failed)} of {num_results} failed in this step ({causes}), {num_failed} of the newest "
                f"{num_rewards}; first: {first.failure}, {first.detail}; "
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
