"""What goes into the reward pool and what comes out.

    RewardItem(completion="7", answer="7")   -> value 1.0, parts {"arithmetic": 1.0}
    RewardItem(completion="8", answer="7")   -> value 0.0, parts {"arithmetic": 0.0}
    a completion whose verifier never ends   -> value None, failure "hang"

A wrong completion has a score; a failure has none, and never turns into a silent 0.0 or 1.0.

Above a share of the newest ones, failures stop a run, with the first one shown in full.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from slurm_rl.data.lines import shorten
from slurm_rl.errors import RewardError

Verifier: TypeAlias = Callable[[str, str], float]
"""(completion text, reference answer) -> score in [0, 1]."""

FailureCause: TypeAlias = Literal["hang", "crash", "exception", "bad score", "service", "reference"]
"""hang: over the deadline. crash: the process died. bad score: NaN, infinite, not a number, or outside [0, 1].
service: a reward service answered every try of this item alone with an error.
reference: no completion could be judged by the reference answer of the row."""


@dataclass(frozen=True, kw_only=True)
class RewardItem:
    """One completion to score against its reference answer."""

    completion: str
    answer: str
    prompt: str = ""
    """What the completion follows, as the policy saw it; a reward function and a reward service get it too."""
    messages: Sequence[dict[str, Any]] | None = None
    """The chat that `prompt` was rendered of, for a reward model's own template; None of plain text."""
    truncated: bool = False
    """The length limit cut the completion, so that no end of text follows it."""


@dataclass(frozen=True, kw_only=True)
class RewardResult:
    """The reward of one item: `value` is None exactly when `failure` is set."""

    item: RewardItem
    value: float | None
    """Sum over verifiers of weight x score; with `algorithm.overlong` less what the length costs."""
    unshaped: float | None = None
    """The value before the length lowered it; None where it did not."""
    parts: dict[str, float] = field(default_factory=dict)
    """Verifier name to its score in [0, 1], before the weight; of a reward function or another's service, what
    it told besides the reward, under its own names. Empty for a failure."""
    failure: FailureCause | None = None
    detail: str = ""
    """Of a failure: the exception, the exit code or the score, in words."""


@dataclass(frozen=True)
class Failure:
    """Why an item has no score; also crosses from the worker process to the pool."""

    cause: FailureCause
    detail: str


def build_result(item: RewardItem, outcome: dict[str, float] | Failure, weights: Mapping[str, float]) -> RewardResult:
    """Return the reward of one item: the weighted sum of its scores, or its failure."""
    if isinstance(outcome, Failure):
        return RewardResult(item=item, value=None, failure=outcome.cause, detail=outcome.detail)
    value = sum(weights.get(name, 0.0) * score for name, score in outcome.items())
    return RewardResult(item=item, value=value, parts=outcome)


_SHOWN_CHARS = 300
_MIN_REWARDS = 1000

_REMEDIES: dict[FailureCause, str] = {
    "hang": "raise reward.timeout_s, or mend the verifier that is slow on it",
    "crash": "run the verifier on this completion alone, and give the job more memory if the kernel ended it",
    "exception": "mend the verifier or the row's answer",
    "bad score": "have the verifier return a number in [0, 1]",
    "reference": "correct the rows' reference answers: `python -m slurm_rl plan` with the same data names them",
    "service": "read the log of the reward service, which failed on this completion alone",
}


class FailureWatch:
    """Puts up with rewards that fail now and then, and not with a reward that is broken.

    Counted are the newest whole steps with 1,000 rewards or more between them. Of these, or of 1,000 while there are
    fewer, `max_failure_rate` may fail: at 0.02 a hang costs its item however small a step is, and so does a prompt
    whose 16 completions all hang, but a verifier that fails on every twentieth item ends the run after some 400. A step
    without a single reward ends it at once: there is nothing to learn. A resumed run begins to count anew.

    Rows that no completion could be judged by cost themselves only: they are no sign of a broken verifier.
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
