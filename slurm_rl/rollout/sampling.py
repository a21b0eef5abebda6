"""The interface of rollouts (prompts in, scored groups out), and rollouts of a single turn over all engines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory
from slurm_rl.errors import TrainingError
from slurm_rl.node.stop import Timer
from slurm_rl.node.wait_for_ray_nodes import POLL_S
from slurm_rl.rewards.results import RewardItem
from slurm_rl.workers.ray_driver import ActorLost, call_method, name_failure

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.config.train import RolloutConfig
    from slurm_rl.data.tokenize import EncodedPrompt
    from slurm_rl.rewards.scorer import Scorer
    from slurm_rl.rollout.engine_supervisor import EngineSupervisor
    from slurm_rl.workers.ray_driver import Actor, Cluster


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
        return self.finish(self.start(prompts, spec), Timer())


@dataclass(eq=False)
class Chunk:
    """Consecutive prompts of one batch, sampled in one call."""

    first: int
    """Index of the first prompt in the batch."""
    prompts: Sequence[EncodedPrompt]
    seeds: Sequence[int]
    spec: SamplingSpec
    done: Future[list[list[Trajectory]]] = field(default_factory=Future)
    engine: Actor | None = None
    """The engine that samples it; None while it is queued."""

    def send(self, engine: Actor) -> Future[Any]:
        """Call the engine; pass the returned future to `end` once it is done."""
        self.engine = engine
        return call_method(engine.handle.generate, [prompt.tokens for prompt in self.prompts], self.seeds, self.spec)

    def end(self, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            self.done.set_result(answer.result())
            return
        assert self.engine is not None
        failure = name_failure(error, self.engine.name, "sampling")
        if isinstance(failure, ActorLost):
            failure.handle = self.engine.handle
        self.done.set_exception(failure)

    def reset(self) -> None:
        """Prepare to send the same prompts and seeds again."""
        self.done, self.engine = Future(), None

    def groups(self) -> dict[int, Group]:
        """Return the sampled groups by index of their prompt; raise the error of the call."""
        pairs = zip(self.prompts, self.done.result(), strict=True)
        return {index: Group(prompt, group) for index, (prompt, group) in enumerate(pairs, self.first)}


class Sampler:
    """All rollout engines as one; each engine gets a fixed share of a batch."""

    def __init__(
        self, cluster: Cluster, engines: Sequence[Actor], timeout_s: float, supervisor: EngineSupervisor | None = None
    ) -> None:
        self.cluster, self.engines, self.timeout_s, self.supervisor = cluster, engines, timeout_s, supervisor

    def start(
        self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None = None
    ) -> list[Chunk]:
        """Send each engine a consecutive share and return at once.

        Args:
            own_seeds: one per prompt; None: those of `seed_prompts`.
        """
        chunks = cut_chunks(prompts, spec, own_seeds, split_evenly(len(prompts), len(self.engines)))
        pairs = [(chunk, engine) for chunk, engine in zip(chunks, self.engines, strict=True) if chunk.prompts]
        for chunk, engine in pairs:
            chunk.send(engine).add_done_callback(chunk.end)
        return [chunk for chunk, _ in pairs]

    def finish(self, chunks: Sequence[Chunk], within_s: float | None = None) -> list[Group]:
        """Wait for the engines; with `within_s`, that long and regardless of stop signals."""
        [groups] = gather_arrivals(self.arrivals(chunks, within_s))
        return list(groups.values())

    def arrivals(self, chunks: Sequence[Chunk], within_s: float | None = None) -> Iterator[dict[int, Group]]:
        """Yield the groups that arrived since the last yield, by index of their prompt, until all have.

        Raises:
            TrainingError: an engine died, raised, or did not answer in time; the error names it.
        """
        timeout_s = self.timeout_s if within_s is None else within_s
        deadline = time.monotonic() + timeout_s
        pending = {chunk.done: chunk for chunk in chunks}
        while pending:
            if within_s is None:
                self.cluster.stop.check()
            self.cluster.while_waiting()
            groups: dict[int, Group] = {}
            for future in wait(pending, timeout=POLL_S, return_when=FIRST_EXCEPTION).done:
                chunk, error = pending.pop(future), future.exception()
                # A checkpoint before the end of a time limit cannot wait for vLLM to start again.
                if self.supervisor and within_s is None and isinstance(error, ActorLost):
                    self._retry(chunk, error)
                    pending[chunk.done] = chunk
                    deadline = time.monotonic() + timeout_s
                else:
                    groups |= chunk.groups()
            if groups:
                yield dict(sorted(groups.items()))
            if pending and time.monotonic() > deadline:
                late = {chunk.engine.name if chunk.engine else "no engine" for chunk in pending.values()}
                raise TrainingError(
                    f"sampling must end within {timeout_s:g} s",
                    seen="no answer from " + ", ".join(sorted(late)),
                    action="raise trainer.step_timeout_s if the work is only slow; else see the attempt's ray logs",
                )

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


def cut_chunks(
    prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None, bounds: Sequence[int]
) -> list[Chunk]:
    """Return the chunks between consecutive `bounds`."""
    seeds = seed_prompts(spec, len(prompts)) if own_seeds is None else own_seeds
    return [Chunk(start, prompts[start:end], seeds[start:end], spec) for start, end in itertools.pairwise(bounds)]


def seed_prompts(spec: SamplingSpec, num_prompts: int) -> list[int]:
    """Return a seed for each prompt that depends on its index only, not on the number of engines."""
    return [derive_seed(spec.seed, index) for index in range(num_prompts)]


def split_evenly(num_items: int, num_parts: int) -> list[int]:
    """Return the bounds of consecutive parts whose lengths differ by at most one."""
    return [num_items * part // num_parts for part in range(num_parts + 1)]


def reward_item(prompt: EncodedPrompt, text: str, *, truncated: bool) -> RewardItem:
    return RewardItem(
        completion=text, answer=prompt.answer, prompt=prompt.text, messages=prompt.messages, truncated=truncated
    )


def score_groups(groups: Sequence[Group], scorer: Scorer) -> list[Group]:
    """Return the groups with one result per completion."""
    items = [
        reward_item(group.prompt, completion.text, truncated=completion.truncated)
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


class SingleTurn(Rollouts):
    """Rollouts of one completion per episode, scored directly.

    Args:
        gathered: score all completions in one call: the last digits of a reward model depend on the batch, which must
            not depend on timing.
    """

    def __init__(self, sampler: Sampler, scorer: Scorer, *, gathered: bool) -> None:
        self.sampler, self.scorer, self.gathered = sampler, scorer, gathered

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Chunk]:
        return self.sampler.start(prompts, spec)

    def finish(self, pending: Sequence[Chunk], timer: Timer, within_s: float | None = None) -> list[Group]:
        arrivals = self.sampler.arrivals(pending, within_s)
        return score_arrivals(gather_arrivals(arrivals) if self.gathered else arrivals, self.scorer, timer)


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
