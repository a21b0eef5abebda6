"""Items and results of the reward pool, and the limit on failures.

    RewardItem(completion="7", answer="7")   -> value 1.0, parts {"arithmetic": 1.0}
    RewardItem(completion="8", answer="7")   -> value 0.0, parts {"arithmetic": 0.0}
    a completion that hangs its verifier     -> value None, failure "hang"

A wrong completion has a score; a failure has none and never becomes 0.0 or 1.0.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from slurm_rl.data.lines import shorten
from slurm_rl.errors import RewardError

Verifier: TypeAlias = Callable[[str, str], float]

FailureCause: TypeAlias = Literal["hang", "crash", "exception", "bad score", "service", "reference"]
"""hang: over the deadline. crash: the process died. bad score: NaN, infinite, not a number, or outside [0, 1].
service: a reward service or judge answered every try of this item with an error.
reference: the row's reference answer is unusable."""


@dataclass(frozen=True, kw_only=True)
class RewardItem:
    completion: str
    answer: str
    prompt: str = ""
    """Prompt as the policy saw it."""
    messages: Sequence[dict[str, Any]] | None = None
    """Chat from which `prompt` was rendered, for a reward model's own template; None for plain text."""
    truncated: bool = False
    """The length limit cut the completion, so it has no end-of-text token."""


@dataclass(frozen=True, kw_only=True)
class RewardResult:
    """Reward of one item; `value` is None exactly if `failure` is set."""

    item: RewardItem
    value: float | None
    """Sum over verifiers of weight x score, minus the penalty of `algorithm.overlong`."""
    unshaped: float | None = None
    """Value before the length penalty; None without a penalty."""
    parts: dict[str, float] = field(default_factory=dict)
    """Verifier name to its unweighted score in [0, 1], or the extra numbers of a reward function or service."""
    failure: FailureCause | None = None
    detail: str = ""
    """Exception, exit code or score of a failure, as text."""


@dataclass(frozen=True)
class Failure:
    """Cause of a missing score; also sent from the worker process to the pool."""

    cause: FailureCause
    detail: str

    def result(self, item: RewardItem) -> RewardResult:
        return RewardResult(item=item, value=None, failure=self.cause, detail=self.detail)


def build_result(item: RewardItem, outcome: dict[str, float] | Failure, weights: Mapping[str, float]) -> RewardResult:
    if isinstance(outcome, Failure):
        return outcome.result(item)
    value = sum(weights.get(name, 0.0) * score for name, score in outcome.items())
    return RewardResult(item=item, value=value, parts=outcome)


_SHOWN_CHARS = 300
_MIN_REWARDS = 1000

_REMEDIES: dict[FailureCause, str] = {
    "hang": "raise reward.timeout_s (a judge: reward.judge.deadline_s), or fix the verifier that is slow on it",
    "crash": "run the verifier on this completion, and give the job more memory if the kernel killed it",
    "exception": "fix the verifier or the row's answer",
    "bad score": "return a number in [0, 1] from the verifier, or have the judge's prompt require the format",
    "reference": "correct the rows' reference answers: `python -m slurm_rl plan` with the same data names them",
    "service": "read the log of the reward service, which failed on this completion",
}


class FailureWatch:
    """Tolerate occasional reward failures and end the run for a broken reward.

    At most `max_failure_rate` of the newest whole steps with at least 1,000 rewards (fewer count as 1,000) may fail,
    and
    never all of a step. Failures with the cause "reference" do not count. A resumed run starts with an empty window.
    """

    def __init__(self, max_failure_rate: float) -> None:
        self.max_failure_rate = max_failure_rate
        self._steps: deque[tuple[int, int]] = deque()
        """(failed, total) of each step in the window."""

    def check(self, results: Sequence[RewardResult]) -> None:
        """Count the rewards of one step; raise RewardError with the causes if too many failed."""
        failed = [result for result in results if result.failure is not None]
        counted = sum(result.failure != "reference" for result in failed)
        self._steps.append((counted, len(results)))
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
                f"completion {shorten(first.item.completion, _SHOWN_CHARS)!r}, "
                f"answer {shorten(first.item.answer, _SHOWN_CHARS)!r}"
            ),
            action=f"{_REMEDIES[first.failure or 'exception']}; "
            "raise reward.max_failure_rate only if such failures are expected",
        )
