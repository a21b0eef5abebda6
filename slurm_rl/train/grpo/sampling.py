"""Sampling over all engines and scoring: prompts in, scored groups out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from slurm_rl.config.run import RunConfig
from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.grpo.cluster import Actor, Cluster
from slurm_rl.train.grpo.dispatch import Chunk, Dispatcher, chunk_size, gather_chunks, max_calls
from slurm_rl.train.grpo.types import Group, SamplingSpec
from slurm_rl.train.rewards.scorer import Scorer
from slurm_rl.train.rewards.types import RewardItem
from slurm_rl.train.seeds import derive_seed

T = TypeVar("T")


@dataclass(frozen=True)
class PendingGroups:
    """What the engines were asked for."""

    prompts: Sequence[EncodedPrompt]
    calls: Sequence[tuple[Actor, Any]]
    """One share an engine."""
    chunks: Sequence[Chunk] = ()
    """In place of calls, where engines take requests at any time."""


class Sampler:
    """The rollout engines as one."""

    def __init__(self, cluster: Cluster, engines: Sequence[Actor], timeout_s: float) -> None:
        self.cluster, self.engines, self.timeout_s = cluster, engines, timeout_s

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        """Groups in the order of the prompts."""
        return self.finish(self.start(prompts, spec))

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingGroups:
        """Ask the engines, each for a consecutive share, and return at once."""
        shares = split_evenly(prompts, len(self.engines))
        calls = [
            (
                engine,
                engine.handle.generate.remote(
                    [prompt.tokens for prompt in share], replace(spec, seed=derive_seed(spec.seed, index))
                ),
            )
            for index, (engine, share) in enumerate(zip(self.engines, shares, strict=True))
            if share
        ]
        return PendingGroups(prompts, calls)

    def finish(self, pending: PendingGroups, within_s: float | None = None) -> list[Group]:
        """Wait for the engines; with `within_s` that long, whatever signals come."""
        timeout_s = self.timeout_s if within_s is None else within_s
        results = self.cluster.gather(pending.calls, timeout_s=timeout_s, what="sampling", stoppable=within_s is None)
        completions = [group for result in results for group in result]
        return [Group(prompt, group) for prompt, group in zip(pending.prompts, completions, strict=True)]

    def sleep(self) -> None:
        """Let engines that share GPUs with the policy leave them; new weights wake them."""
        calls = [(engine, engine.handle.sleep.remote()) for engine in self.engines]
        self.cluster.gather(calls, timeout_s=self.timeout_s, what="putting the engines to sleep", stoppable=False)


class ContinuousSampler(Sampler):
    """The same where engines take requests at any time: each gets the next prompts as soon as it has room."""

    def __init__(
        self, cluster: Cluster, engines: Sequence[Actor], timeout_s: float, *, max_num_seqs: int, staleness: int
    ) -> None:
        super().__init__(cluster, engines, timeout_s)
        self.max_num_seqs, self.dispatcher = max_num_seqs, Dispatcher(engines, max_calls(staleness))

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingGroups:
        """Put the prompts behind those that are under way, and return at once."""
        size = chunk_size(len(prompts), spec.num_completions, len(self.engines), self.max_num_seqs)
        chunks = [
            Chunk([prompt.tokens for prompt in part], replace(spec, seed=derive_seed(spec.seed, index)))
            for index, part in enumerate(cut(prompts, size))
        ]
        self.dispatcher.submit(chunks)
        return PendingGroups(prompts, [], chunks)

    def finish(self, pending: PendingGroups, within_s: float | None = None) -> list[Group]:
        timeout_s = self.timeout_s if within_s is None else within_s
        found = gather_chunks(self.cluster, pending.chunks, timeout_s=timeout_s, stoppable=within_s is None)
        return [Group(prompt, group) for prompt, group in zip(pending.prompts, found, strict=True)]


def cut(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Consecutive parts of `size`, the last one perhaps shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def split_evenly(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Consecutive parts whose lengths differ by at most one."""
    bounds = [len(items) * part // num_parts for part in range(num_parts + 1)]
    return [items[start:end] for start, end in itertools.pairwise(bounds)]


def score_groups(groups: Sequence[Group], scorer: Scorer) -> list[Group]:
    """The groups with one result a completion."""
    items = [
        RewardItem(completion=completion.text, answer=group.prompt.answer, prompt=group.prompt.text)
        for group in groups
        for completion in group.completions
    ]
    results = iter(scorer.score(items))
    return [replace(group, results=[next(results) for _ in group.completions]) for group in groups]


def build_spec(
    config: RunConfig, purpose: str, step: int, num_completions: int, *, greedy: bool = False
) -> SamplingSpec:
    """How to sample for `purpose` in `step`, as `rollout` says; the seed follows from those and the run's."""
    rollout = config.rollout
    seed = derive_seed(config.seed, purpose, step)
    if greedy:
        return SamplingSpec(num_completions, rollout.max_tokens, 0.0, 1.0, seed)
    return SamplingSpec(num_completions, rollout.max_tokens, rollout.temperature, rollout.top_p, seed)
