"""Sampling over all engines and scoring: prompts in, scored groups out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.care import EngineCare
from slurm_rl.rollout.dispatch import Chunk, Dispatcher, chunk_arrivals, chunk_size, max_calls
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster

T = TypeVar("T")


@dataclass(frozen=True)
class PendingGroups:
    """What the engines were asked for."""

    shares: Sequence[Sequence[EncodedPrompt]]
    """The prompts of each request, in order."""
    chunks: Sequence[Chunk]
    """The requests."""


class Sampler:
    """The rollout engines as one."""

    def __init__(
        self, cluster: Cluster, engines: Sequence[Actor], timeout_s: float, care: EngineCare | None = None
    ) -> None:
        self.cluster, self.engines, self.timeout_s, self.care = cluster, engines, timeout_s, care

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        """Groups in the order of the prompts."""
        return self.finish(self.start(prompts, spec))

    def start(
        self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None = None
    ) -> PendingGroups:
        """Ask the engines, each for a consecutive share, and return at once.

        Args:
            own_seeds: one a prompt; None: those of `seed_prompts`.
        """
        count = len(self.engines)
        all_seeds = seed_prompts(spec, len(prompts)) if own_seeds is None else own_seeds
        shares, seeds = split_evenly(prompts, count), split_evenly(all_seeds, count)
        engines = [engine for engine, share in zip(self.engines, shares, strict=True) if share]
        pending = _build_requests([*filter(None, shares)], [*filter(None, seeds)], spec)
        for engine, chunk in zip(engines, pending.chunks, strict=True):
            chunk.send(engine).add_done_callback(chunk.end)
        return pending

    def finish(self, pending: PendingGroups, within_s: float | None = None) -> list[Group]:
        """Wait for the engines; with `within_s` that long, whatever signals come."""
        [found] = gather_arrivals(self.arrivals(pending, within_s))
        return list(found.values())

    def arrivals(self, pending: PendingGroups, within_s: float | None = None) -> Iterator[dict[int, Group]]:
        """The groups that came since the last time, by their place among the prompts, until all have."""
        timeout_s = self.timeout_s if within_s is None else within_s
        firsts = [0, *itertools.accumulate(map(len, pending.shares))]
        stoppable = within_s is None
        # Who saves in little time has none for a start of vLLM.
        revive = self._revive if self.care and stoppable else None
        for requests in chunk_arrivals(
            self.cluster, pending.chunks, timeout_s=timeout_s, stoppable=stoppable, revive=revive
        ):
            found: dict[int, Group] = {}
            for request in requests:
                pairs = zip(pending.shares[request], pending.chunks[request].done.result(), strict=True)
                found |= {firsts[request] + i: Group(prompt, group) for i, (prompt, group) in enumerate(pairs)}
            yield found

    def _revive(self, chunk: Chunk, lost: ActorLost) -> None:
        """Have the engine replaced, and ask its successor."""
        assert self.care is not None
        self.care.recover(lost)
        chunk.begin_again()
        self._send_again(chunk, lost.actor)

    def _send_again(self, chunk: Chunk, name: str) -> None:
        engine = next(engine for engine in self.engines if engine.name == name)
        chunk.send(engine).add_done_callback(chunk.end)

    def sleep(self) -> None:
        """Let engines that share GPUs with the policy leave them; new weights wake them."""
        calls = [(engine, engine.handle.sleep.remote()) for engine in self.engines]
        self.cluster.gather(calls, timeout_s=self.timeout_s, what="putting the engines to sleep", stoppable=False)


class ContinuousSampler(Sampler):
    """The same where engines take requests at any time: each gets the next prompts as soon as it has room."""

    def __init__(
        self,
        cluster: Cluster,
        engines: Sequence[Actor],
        timeout_s: float,
        care: EngineCare | None = None,
        *,
        max_num_seqs: int,
        staleness: int,
    ) -> None:
        super().__init__(cluster, engines, timeout_s, care)
        self.max_num_seqs, self.dispatcher = max_num_seqs, Dispatcher(engines, max_calls(staleness))

    def start(
        self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None = None
    ) -> PendingGroups:
        """Put the prompts behind those that are in flight, and return at once."""
        size = chunk_size(len(prompts), spec.num_completions, len(self.engines), self.max_num_seqs)
        all_seeds = seed_prompts(spec, len(prompts)) if own_seeds is None else own_seeds
        pending = _build_requests(cut(prompts, size), cut(all_seeds, size), spec)
        self.dispatcher.submit(pending.chunks)
        return pending

    def _send_again(self, chunk: Chunk, name: str) -> None:
        self.dispatcher.submit([chunk])


def _build_requests(
    shares: Sequence[Sequence[EncodedPrompt]], seeds: Sequence[Sequence[int]], spec: SamplingSpec
) -> PendingGroups:
    pairs = zip(shares, seeds, strict=True)
    return PendingGroups(shares, [Chunk([prompt.tokens for prompt in share], own, spec) for share, own in pairs])


def seed_prompts(spec: SamplingSpec, num_prompts: int) -> list[int]:
    """A seed for each prompt, by its place alone: no two share a stream, and more engines sample the same."""
    return [derive_seed(spec.seed, place) for place in range(num_prompts)]


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
        RewardItem(
            completion=completion.text,
            answer=group.prompt.answer,
            prompt=group.prompt.text,
            messages=group.prompt.messages,
            truncated=completion.truncated,
        )
        for group in groups
        for completion in group.completions
    ]
    results = iter(scorer.score(items))
    return [replace(group, results=[next(results) for _ in group.completions]) for group in groups]


def gather_arrivals(arrivals: Iterator[dict[int, Group]]) -> Iterator[dict[int, Group]]:
    """All that comes, at once and in order."""
    yield dict(sorted(item for part in arrivals for item in part.items()))


def score_arrivals(arrivals: Iterator[dict[int, Group]], scorer: Scorer, timer: Timer) -> list[Group]:
    """Groups scored as they come, so that a slow reward hides behind what is still sampled; in the prompts' order.

    Args:
        timer: gets the time of waiting for groups as `rollout`, and of scoring as `reward`.
    """
    scored: dict[int, Group] = {}
    while True:
        with timer.phase("rollout"):
            part = next(arrivals, None)
        if part is None:
            return [scored[place] for place in sorted(scored)]
        with timer.phase("reward"):
            scored |= dict(zip(part, score_groups(list(part.values()), scorer), strict=True))


def build_spec(
    config: RunConfig, purpose: str, step: int, num_completions: int, *, greedy: bool = False
) -> SamplingSpec:
    """How to sample for `purpose` in `step`, as `rollout` says; the seed follows from those and the run's.

    Args:
        greedy: the likeliest token each time, whatever bends the distribution; it stops where sampling does.
    """
    spec = SamplingSpec(
        num_completions,
        config.rollout.max_tokens,
        temperature=0.0 if greedy else config.rollout.temperature,
        top_p=1.0,
        seed=derive_seed(config.seed, purpose, step),
        batch=f"{purpose}-{step}",
    )
    return sample_as(config.rollout, spec)


def sample_as(rollout: RolloutConfig, spec: SamplingSpec) -> SamplingSpec:
    """The same in the way of `rollout`; of a greedy one that is how long completions are and where they stop."""
    spec = replace(spec, max_tokens=rollout.max_tokens, stop=rollout.stop, stop_token_ids=rollout.stop_token_ids)
    if spec.temperature == 0:
        return spec
    return replace(
        spec,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        repetition_penalty=rollout.repetition_penalty,
    )
