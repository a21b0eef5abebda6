"""The batch queue: prompts of each GRPO step, sampled and scored while the policy trains on older batches.

With `rollout.max_off_policy_steps` k, step t trains on a batch sampled with the weights of step t - k (with those of
step 0 while t < k). At k = 0 the batch of step t is requested in step t: the synchronous loop. The schedule does not
depend on time, so every k repeats in every digit. A checkpoint holds the batches in flight, because their weights are
lost on resume. Dynamic sampling requests further prompts of a step in that step, after the batches in flight and with
newer weights. With `rollout.inflight_weight_updates` batches overlap in an engine and weights change between tokens, so
k is a bound and the version of a token depends on time.

    step t:  start(t + k) -> take(t) -> train -> send weights t + 1, which an engine loads after batch t + k
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.algorithms.filters import has_signal
from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.algorithms.shaping import apply_group_reward, shape_overlong
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_source
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.mixing import Order, build_order, list_candidates
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import StopRequested, TrainingError
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import FailureWatch
from slurm_rl.rollout.sampling import Rollouts, build_spec
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.rollout_files import dump_groups, replay_groups

if TYPE_CHECKING:
    from slurm_rl.data.curriculum import Rates


@dataclass(frozen=True)
class Batch:
    """Scored groups of one request, with their times."""

    groups: list[Group]
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; measured in another thread than the loop's unless k is 0."""


class PromptSchedule:
    """Chooses the prompts and the seed of each GRPO step.

    They are a pure function of the step, and of earlier scores with a curriculum: a resumed run chooses the same.

    Args:
        prompts: training prompts.
        find_rates: returns the solve rates of earlier steps, for a curriculum.
    """

    def __init__(
        self, config: RunConfig, prompts: Sequence[EncodedPrompt], find_rates: Callable[[], Rates] = dict
    ) -> None:
        self.config, self.prompts, self.find_rates = config, prompts, find_rates
        sources = [prompt.source for prompt in prompts]
        weights = {name: source.weight for name, source in config.data.sources.items()}
        self.order = build_order(sources, weights, config.seed)
        self.refill_order = build_order(sources, weights, derive_seed(config.seed, "refill"))
        self.ids = [prompt.row_id for prompt in prompts] if config.data.curriculum is not None else []

    def draw(self, step: int, round_number: int = 0) -> tuple[list[EncodedPrompt], SamplingSpec]:
        """Return the prompts of a GRPO step and how to sample them.

        Args:
            round_number: round of dynamic sampling; each has other prompts.
        """
        count, purpose, order, place = self.config.trainer.prompts_per_step, "rollout", self.order, step
        if round_number:
            purpose, order = f"refill-{round_number}", self.refill_order
            place = step * self.config.algorithm.dynamic_sampling_rounds + round_number
        rows = self._rows(order, place * count)
        run_step = self.config.warmup.num_steps + step
        spec = build_spec(self.config, purpose, run_step, self.config.algorithm.group_size)
        return [self.prompts[row] for row in rows], spec

    def _rows(self, order: Order, position: int) -> list[int]:
        count, curriculum = self.config.trainer.prompts_per_step, self.config.data.curriculum
        if curriculum is None:
            return order.take(position, count)
        from slurm_rl.data.curriculum import choose_rows

        candidates = list_candidates(order, position, count, curriculum.candidates)
        seed, ids = self.config.seed, self.ids
        return choose_rows(candidates, ids, self.find_rates(), curriculum, seed=seed, position=position)


@dataclass(frozen=True)
class Collected:
    """The batch of one step."""

    groups: list[Group]
    """Groups to train on."""
    sampled: list[Group]
    """All groups of all rounds."""
    num_rounds: int


def collect_groups(draw: Callable[[int], Sequence[Group]], count: int, max_rounds: int) -> Collected:
    """Draw rounds of `count` scored groups until `count` of them carry signal, or `max_rounds` are drawn.

    At the bound, groups without signal fill the batch to `count` groups.

    Args:
        draw: returns the groups of round 0, 1, ...; a pure function of the round within one step, so that an
            interrupted step repeats.
        max_rounds: >= 1; with 1 the batch is the first round.
    """
    sampled = list(draw(0))
    num_rounds = 1
    if max_rounds == 1:
        return Collected(sampled, sampled, num_rounds)
    while sum(map(has_signal, sampled)) < count and num_rounds < max_rounds:
        sampled += draw(num_rounds)
        num_rounds += 1
    # The signal decides which groups are kept, the sampling decides their order.
    by_signal = sorted(range(len(sampled)), key=lambda place: not has_signal(sampled[place]))
    return Collected([sampled[place] for place in sorted(by_signal[:count])], sampled, num_rounds)


class BatchQueue:
    """Batches by GRPO step: from the engines, or from rollouts on disk (`rollout.replay`).

    Called in the loop's thread, so that engines get requests and weights in one order; a thread scores the batches.

    Args:
        schedule: chooses the prompts of each batch.
        rollouts: sends the requests of a batch, waits for it and scores it.
        is_journalled: batches in flight resume from the turn log, so checkpoints do not wait for them.
    """

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        schedule: PromptSchedule,
        rollouts: Rollouts,
        *,
        is_journalled: bool = False,
    ) -> None:
        self.config, self.run_dir, self.schedule, self.rollouts = config, run, schedule, rollouts
        self.is_journalled = is_journalled
        self.staleness = config.rollout.max_off_policy_steps
        self.failures = FailureWatch(config.reward.max_failure_rate)
        self._in_flight: dict[int, tuple[Any, Future[Batch]]] = {}
        self._done: dict[int, Batch] = {}
        # One thread: batches are scored in order.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="rollout")

    def take(self, step: int, timer: Timer) -> Collected:
        """Return the batch of GRPO step `step` (>= 0), and keep those of the next k steps in flight.

        Args:
            timer: records the phases rollout, reward, refill, and hidden (time of a batch during training).

        Raises:
            RewardError: too many rewards failed.
        """
        config, run_step = self.config, self.config.warmup.num_steps + step
        if config.rollout.replay is not None:
            with timer.phase("rollout"):
                groups = replay_groups(Path(config.rollout.replay), run_step)
            return Collected(groups, groups, 1)
        with timer.phase("rollout"):
            first = self._wait_for(step)
        self._add_times(first, timer)
        try:
            collected = collect_groups(
                lambda number: self._refill(step, number, timer) if number else first.groups,
                config.trainer.prompts_per_step,
                config.algorithm.dynamic_sampling_rounds,
            )
        except StopRequested:
            if self.staleness:
                self._done[step] = first  # its weights are lost on resume
            raise
        self.failures.check([result for group in collected.sampled for result in group.results])
        if config.rollout.dump:
            dump_groups(self.run_dir.rollouts, run_step, collected.groups)
        return collected

    def _wait_for(self, step: int) -> Batch:
        """Request the batches that may be in flight during this step, then return the step's batch."""
        for ahead in range(step, min(step + self.staleness, self.config.trainer.num_steps - 1) + 1):
            if ahead not in self._in_flight and ahead not in self._done:
                self._in_flight[ahead] = self._start(ahead)
        if step in self._done:
            return self._done.pop(step)
        batch = self._in_flight[step][1].result()
        del self._in_flight[step]
        return batch

    def _add_times(self, batch: Batch, timer: Timer) -> None:
        seconds = timer.seconds
        if self.staleness == 0:
            others = {name: value for name, value in batch.seconds.items() if name != "time/rollout_s"}
            seconds |= {"time/reward_s": 0.0, **others}
            seconds["time/rollout_s"] -= sum(others.values())
        else:
            seconds["time/hidden_s"] = max(sum(batch.seconds.values()) - seconds["time/rollout_s"], 0.0)

    def _refill(self, step: int, number: int, timer: Timer) -> list[Group]:
        """Request other prompts for dynamic sampling, after the batches in flight."""
        with timer.phase("refill"):
            return self._start(step, number)[1].result().groups

    def _start(self, step: int, round_number: int = 0) -> tuple[Any, Future[Batch]]:
        """Send the requests of a batch, which a thread then waits for."""
        pending = self.rollouts.start(*self.schedule.draw(step, round_number))
        return pending, self._threads.submit(self._finish, pending, None)

    def _finish(self, pending: Any, within_s: float | None) -> Batch:
        """Wait for the completions and score them.

        Args:
            within_s: time limit that ignores stop signals; None: a stop signal raises StopRequested.
        """
        timer, algorithm = Timer(), self.config.algorithm
        scored = self.rollouts.finish(pending, timer, within_s)
        if algorithm.group_reward is not None:
            with timer.phase("reward"):
                scored = apply_group_reward(algorithm.group_reward, scored)
        max_tokens = {name: one.rollout.max_tokens for name, one in each_source(self.config).items()}
        return Batch(shape_overlong(scored, algorithm.overlong, max_tokens), timer.seconds)

    def drain(self, within_s: float) -> dict[int, list[Group]]:
        """Wait for the batches in flight and return them for a checkpoint; they stay in the queue.

        A batch interrupted by a stop signal has `within_s` seconds to end; otherwise it is left out, and sampled again
        with newer weights.
        """
        if self.is_journalled:
            return {}
        self._let_end(within_s)
        self._done |= {step: future.result() for step, (_, future) in sorted(self._in_flight.items())}
        self._in_flight.clear()
        return {step: batch.groups for step, batch in sorted(self._done.items())}

    def wait(self, within_s: Callable[[], float]) -> None:
        """Wait until nothing is in flight; errors are raised when a batch is taken.

        A batch interrupted by a stop signal must not continue with newer weights, so it ends first, as for a
        checkpoint.

        Args:
            within_s: returns the seconds that it may take after the stop; called only for such a batch.
        """
        if any(isinstance(future.exception(), StopRequested) for _, future in self._in_flight.values()):
            self._let_end(within_s())

    def _let_end(self, within_s: float) -> None:
        """Wait for batches in flight; an interrupted batch is dropped after its time."""
        deadline = time.monotonic() + within_s
        for step, (pending, future) in sorted(self._in_flight.items()):
            if isinstance(future.exception(), StopRequested):
                del self._in_flight[step]
                with contextlib.suppress(TrainingError):
                    self._done[step] = self._finish(pending, max(deadline - time.monotonic(), 0.0))

    def restore(self, batches: dict[int, list[Group]]) -> None:
        """Restore the batches of a checkpoint."""
        self._done = {step: Batch(groups) for step, groups in batches.items()}

    def close(self) -> None:
        """Close without waiting; the engines end with the run."""
        self._threads.shutdown(wait=False, cancel_futures=True)
