"""The batch of one step: prompts sampled and scored, again with new prompts where groups carry no signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_rl.rl.algorithm.minibatches import has_signal
from slurm_rl.rl.groups import Group


@dataclass(frozen=True)
class Collected:
    """What one step sampled, and what it trains on."""

    groups: list[Group]
    """The batch."""
    sampled: list[Group]
    """All groups of all rounds."""
    num_rounds: int


def collect_groups(draw: Callable[[int], Sequence[Group]], count: int, max_rounds: int) -> Collected:
    """Draw rounds of `count` scored groups until `count` of them carry signal, or `max_rounds` are drawn.

    At the bound, groups without signal fill the batch, so that it has `count` groups whatever was drawn.

    Args:
        draw: the groups of round 0, 1, ...; a pure function of the round within one step, so that an
            interrupted step repeats.
        max_rounds: >= 1; with 1 the batch is the round as it came.
    """
    sampled = list(draw(0))
    num_rounds = 1
    if max_rounds == 1:
        return Collected(sampled, sampled, num_rounds)
    while sum(map(has_signal, sampled)) < count and num_rounds < max_rounds:
        sampled += draw(num_rounds)
        num_rounds += 1
    # Which groups follows from their signal, their order from the sampling alone.
    by_signal = sorted(range(len(sampled)), key=lambda place: not has_signal(sampled[place]))
    return Collected([sampled[place] for place in sorted(by_signal[:count])], sampled, num_rounds)
