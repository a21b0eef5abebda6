"""What goes into the reward pool and what comes out.

    RewardItem(completion="7", answer="7")   -> value 1.0, parts {"arithmetic": 1.0}
    RewardItem(completion="8", answer="7")   -> value 0.0, parts {"arithmetic": 0.0}
    a completion whose verifier never ends   -> value None, failure "hang"

A wrong completion has a score; a failure has none, and never turns into a silent 0.0 or 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from slurm_rl.errors import DataError

Verifier: TypeAlias = Callable[[str, str], float]
"""(completion text, reference answer) -> score in [0, 1]."""

FailureCause: TypeAlias = Literal["hang", "crash", "exception", "bad score", "service"]
"""hang: over the deadline. crash: the process died. bad score: NaN, infinite, not a number, or outside [0, 1].
service: a reward service answered every try of this item alone with an error."""


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
    it told beside the reward, under its own names. Empty for a failure."""
    failure: FailureCause | None = None
    detail: str = ""
    """Of a failure: the exception, the exit code or the score, in words."""


@dataclass(frozen=True)
class Failure:
    """Why an item has no score; also crosses from the worker process to the pool."""

    cause: FailureCause
    detail: str


def build_result(
    item: RewardItem, outcome: dict[str, float] | Failure | DataError, weights: Mapping[str, float]
) -> RewardResult:
    """The reward of one item: the weighted sum of its scores. Raises the DataError that an outcome is."""
    if isinstance(outcome, DataError):
        raise outcome
    if isinstance(outcome, Failure):
        return RewardResult(item=item, value=None, failure=outcome.cause, detail=outcome.detail)
    value = sum(weights.get(name, 0.0) * score for name, score in outcome.items())
    return RewardResult(item=item, value=value, parts=outcome)
