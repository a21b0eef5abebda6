"""Rollouts of several data sources as one: each prompt goes to the rollouts of its source."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import Timer
from slurm_rl.rollout.sampling import Rollouts, sample_as


@dataclass(frozen=True)
class Source:
    """Rollouts and sampling parameters of one data source."""

    rollouts: Rollouts
    rollout: RolloutConfig


@dataclass(frozen=True)
class _Share:
    """The prompts of one source in a batch."""

    source: Source
    indices: list[int]
    """Indices of the prompts in the batch."""
    pending: Any


class MultiSource(Rollouts):
    """`Rollouts` of several sources.

    Args:
        sources: by name, in the order of requests. Multi-turn sources come first, so that engines sample the other
            completions while environments step.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = sources

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[_Share]:
        shares = []
        for name, source in self.sources.items():
            indices = [index for index, prompt in enumerate(prompts) if prompt.source == name]
            if indices:
                # A seed per source: prompts of two sources may have the same index within their shares.
                own = replace(sample_as(source.rollout, spec), seed=derive_seed(spec.seed, "source", name))
                pending = source.rollouts.start([prompts[index] for index in indices], own)
                shares.append(_Share(source, indices, pending))
        return shares

    def finish(self, pending: Sequence[_Share], timer: Timer, within_s: float | None = None) -> list[Group]:
        deadline = None if within_s is None else time.monotonic() + within_s
        groups: dict[int, Group] = {}
        for share in pending:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            groups |= dict(zip(share.indices, share.source.rollouts.finish(share.pending, timer, left), strict=True))
        return [groups[index] for index in sorted(groups)]
