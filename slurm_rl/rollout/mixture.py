"""Rollouts of several sources as one: prompts go to the rollouts of their source, groups come back in their order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import Timer
from slurm_rl.rollout.sampling import sample_as
from slurm_rl.rollout.single_turn import Rollouts


@dataclass(frozen=True)
class Part:
    """How the prompts of one source are sampled and judged."""

    rollouts: Rollouts
    rollout: RolloutConfig
    """How its completions, or episodes, are sampled."""


@dataclass(frozen=True)
class _Share:
    """The prompts of one source in a batch."""

    part: Part
    places: list[int]
    """Of the prompts in the batch."""
    pending: Any


class Mixture:
    """`Rollouts` of several sources.

    Args:
        parts: by source. Their prompts are asked for, and waited for, in this order: those whose episodes have several
            turns first, so that engines have the others' completions to sample while environments step.
    """

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self.parts = parts

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[_Share]:
        shares = []
        for name, part in self.parts.items():
            places = [place for place, prompt in enumerate(prompts) if prompt.source == name]
            if places:
                # A seed of the source: places in its share would else have those of another's.
                own = replace(sample_as(part.rollout, spec), seed=derive_seed(spec.seed, "source", name))
                shares.append(_Share(part, places, part.rollouts.start([prompts[place] for place in places], own)))
        return shares

    def finish(self, pending: Sequence[_Share], timer: Timer, within_s: float | None = None) -> list[Group]:
        deadline = None if within_s is None else time.monotonic() + within_s
        found: dict[int, Group] = {}
        for share in pending:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            found |= dict(zip(share.places, share.part.rollouts.finish(share.pending, timer, left), strict=True))
        return [found[place] for place in sorted(found)]

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        return self.finish(self.start(prompts, spec), Timer())
