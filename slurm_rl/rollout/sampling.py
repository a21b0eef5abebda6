"""The interface of rollouts (prompts in, scored groups out), and rollouts of a single turn over all engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rollout.load_balancer import Chunk, LoadBalancer, chunk_size, max_calls, wait_for_chunks

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.config.train import RolloutConfig
    from slurm_rl.data.tokenize import EncodedPrompt
    from slurm_rl.node.stop import Timer
    from slurm_rl.rewards.scorer import Scorer
    from slurm_rl.rollout.engine_supervisor import EngineSupervisor
    from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster

T = TypeVar("T")


class Rollouts(Protocol):
    """Samples and scores; used by the training loop and the evaluation."""

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> Any:
        """Send the first requests and return at once."""

    def finish(self, pending: Any, timer: Timer, within_s: float | None = None) -> list[Group]:
        """Return the scored groups in the order of the prompts.

        Args:
            timer: records the phases rollout, reward and environment.
            within_s: time limit that ignores stop signals; None: `trainer.step_timeout_s`, and a stop signal ends it.
        """

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        """Start and finish in one call, for the evaluation."""


@dataclass(frozen=True)
class PendingGroups:
    """Requests in flight."""

    shares: Sequence[Sequence[EncodedPrompt]]
    """Prompts of each request, in order."""
    chunks: Sequence[Chunk]
    """The requests."""


class Sampler:
    """All rollout engines as one; each engine gets a fixed share of a batch."""

    def __init__(
        self, cluster: Cluster, engines: Sequence[Actor], timeout_s: float, supervisor: EngineSupervisor | None = None
    ) -> None:
        self.cluster, self.engines, self.timeout_s, self.supervisor = cluster, engines, timeout_s, supervisor

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        """Return groups in the order of the prompts."""
        return self.finish(self.start(prompts, spec))

    def start(
        self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None = None
    ) -> PendingGroups:
        """Send each engine a consecutive share and return at once.

        Args:
            own_seeds: one per prompt; None: those of `seed_prompts`.
        """
        count = len(self.engines)
        all_seeds = seed_prompts(spec, len(prompts)) if own_seeds is None else own_seeds
        shares, seeds = split_evenly(prompts, count), split_evenly(all_seeds, count)
        engines = [engine for engine, share in zip(self.engines, shares, strict=True) if share]
        pending = _build_chunks([*filter(None, shares)], [*filter(None, seeds)], spec)
        for engine, chunk in zip(engines, pending.chunks, strict=True):
            chunk.send(engine).add_done_callback(chunk.end)
        return pending

    def finish(self, pending: PendingGroups, within_s: float | None = None) -> list[Group]:
        """Wait for the engines; with `within_s`, that long and regardless of stop signals."""
        [groups] = gather_arrivals(self.arrivals(pending, within_s))
        return list(groups.values())

    def arrivals(self, pending: PendingGroups, within_s: float | None = None) -> Iterator[dict[int, Group]]:
        """Yield the groups that arrived since the last yield, by index of their prompt."""
        timeout_s = self.timeout_s if within_s is None else within_s
        firsts = [0, *itertools.accumulate(map(len, pending.shares))]
        stoppable = within_s is None
        # A checkpoint before the end of a time limit cannot wait for vLLM to start again.
        retry = self._retry if self.supervisor and stoppable else None
        for finished in wait_for_chunks(
            self.cluster, pending.chunks, timeout_s=timeout_s, stoppable=stoppable, retry=retry
        ):
            groups: dict[int, Group] = {}
            for index in finished:
                pairs = zip(pending.shares[index], pending.chunks[index].done.result(), strict=True)
                groups |= {firsts[index] + i: Group(prompt, group) for i, (prompt, group) in enumerate(pairs)}
            yield groups

    def _retry(self, chunk: Chunk, lost: ActorLost) -> None:
        """Have the engine replaced and send the chunk to the replacement."""
        assert self.supervisor is not None
        self.supervisor.recover(lost)
        chunk.reset()
        self._send_again(chunk, lost.actor)

    def _send_again(self, chunk: Chunk, name: str) -> None:
        engine = next(engine for engine in self.engines if engine.name == name)
        chunk.send(engine).add_done_callback(chunk.end)

    def sleep(self) -> None:
        """Free the GPU memory of engines that share GPUs with the policy; new weights wake them."""
        calls = [(engine, engine.handle.sleep.remote()) for engine in self.engines]
        self.cluster.gather(calls, timeout_s=self.timeout_s, what="putting the engines to sleep", stoppable=False)


class AsyncSampler(Sampler):
    """A sampler over asynchronous engines: each gets the next prompts as soon as it has room."""

    def __init__(
        self,
        cluster: Cluster,
        engines: Sequence[Actor],
        timeout_s: float,
        supervisor: EngineSupervisor | None = None,
        *,
        max_num_seqs: int,
        staleness: int,
    ) -> None:
        super().__init__(cluster, engines, timeout_s, supervisor)
        self.max_num_seqs, self.balancer = max_num_seqs, LoadBalancer(engines, max_calls(staleness))

    def start(
        self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None = None
    ) -> PendingGroups:
        """Queue the prompts behind those in flight and return at once."""
        size = chunk_size(len(prompts), spec.num_completions, len(self.engines), self.max_num_seqs)
        all_seeds = seed_prompts(spec, len(prompts)) if own_seeds is None else own_seeds
        pending = _build_chunks(cut(prompts, size), cut(all_seeds, size), spec)
        self.balancer.submit(pending.chunks)
        return pending

    def _send_again(self, chunk: Chunk, name: str) -> None:
        self.balancer.submit([chunk])


def _build_chunks(
    shares: Sequence[Sequence[EncodedPrompt]], seeds: Sequence[Sequence[int]], spec: SamplingSpec
) -> PendingGroups:
    pairs = zip(shares, seeds, strict=True)
    return PendingGroups(shares, [Chunk([prompt.tokens for prompt in share], own, spec) for share, own in pairs])


def seed_prompts(spec: SamplingSpec, num_prompts: int) -> list[int]:
    """Return a seed for each prompt that depends on its index only, not on the number of engines."""
    return [derive_seed(spec.seed, index) for index in range(num_prompts)]


def cut(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Return consecutive parts of `size`; the last may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def split_evenly(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    """Return consecutive parts whose lengths differ by at most one."""
    bounds = [len(items) * part // num_parts for part in range(num_parts + 1)]
    return [items[start:end] for start, end in itertools.pairwise(bounds)]


def score_groups(groups: Sequence[Group], scorer: Scorer) -> list[Group]:
    """Return the groups with one result per completion."""
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
    """Yield all arrivals at once, in order."""
    yield dict(sorted(item for part in arrivals for item in part.items()))


def score_arrivals(arrivals: Iterator[dict[int, Group]], scorer: Scorer, timer: Timer) -> list[Group]:
    """Score groups as they arrive, which overlaps slow rewards with sampling; return them in the prompts' order.

    Args:
        timer: records the wait for groups as `rollout` and the scoring as `reward`.
    """
    scored: dict[int, Group] = {}
    while True:
        with timer.phase("rollout"):
            part = next(arrivals, None)
        if part is None:
            return [scored[index] for index in sorted(scored)]
        with timer.phase("reward"):
            scored |= dict(zip(part, score_groups(list(part.values()), scorer), strict=True))


class SingleTurn:
    """Rollouts of one completion per episode, scored directly.

    Args:
        gathered: score all completions in one call: the last digits of a reward model depend on the batch, which must
            not depend on timing.
    """

    def __init__(self, sampler: Sampler, scorer: Scorer, *, gathered: bool) -> None:
        self.sampler, self.scorer, self.gathered = sampler, scorer, gathered

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingGroups:
        return self.sampler.start(prompts, spec)

    def finish(self, pending: PendingGroups, timer: Timer, within_s: float | None = None) -> list[Group]:
        arrivals = self.sampler.arrivals(pending, within_s)
        return score_arrivals(gather_arrivals(arrivals) if self.gathered else arrivals, self.scorer, timer)

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        return score_groups(self.sampler.sample(prompts, spec), self.scorer)


def build_spec(
    config: RunConfig, purpose: str, step: int, num_completions: int, *, greedy: bool = False
) -> SamplingSpec:
    """Return the sampling parameters of `rollout` for `purpose` in `step`; the seed follows from both and the run's.

    Args:
        greedy: take the likeliest token, whatever truncates the distribution; stop conditions stay.
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
    """Return `spec` with the parameters of `rollout`; a greedy one takes length and stop conditions only."""
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
