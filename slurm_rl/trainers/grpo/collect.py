"""The batch of one step: prompts sampled and scored, repeated with new prompts if groups carry no signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.algorithms.filters import has_signal
from slurm_rl.algorithms.overlong import shape_overlong
from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_source
from slurm_rl.data.groups import Group
from slurm_rl.data.mixing import Order, Rates, build_order, choose_rows, list_candidates
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import StopRequested
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import FailureWatch
from slurm_rl.rollout.sampling import build_spec
from slurm_rl.rollout.single_turn import Rollouts
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.pipeline import Batch, RolloutPipeline
from slurm_rl.trainers.grpo.trainer_state import dump_groups, replay_groups


class BatchSource:
    """Draws the prompts of a GRPO step: a pure function of the step, and of earlier scores with a curriculum, so that a
    resumed run draws the same prompts.

    Args:
        prompts: training prompts.
        find_rates: returns the solve rates of earlier steps, for a curriculum.
    """

    def __init__(
        self,
        config: RunConfig,
        prompts: Sequence[EncodedPrompt],
        rollouts: Rollouts,
        find_rates: Callable[[], Rates] = dict,
    ) -> None:
        self.config, self.prompts, self.rollouts, self.find_rates = config, prompts, rollouts, find_rates
        sources = [prompt.source for prompt in prompts]
        weights = {name: source.weight for name, source in config.data.sources.items()}
        self.order = build_order(sources, weights, config.seed)
        self.refill_order = build_order(sources, weights, derive_seed(config.seed, "refill"))
        self.ids = [prompt.row_id for prompt in prompts] if config.data.curriculum is not None else []
        self.max_tokens = {name: one.rollout.max_tokens for name, one in each_source(config).items()}

    def start(self, grpo_step: int) -> Any:
        """Request the completions of a step's prompts; returns at once."""
        count = self.config.trainer.prompts_per_step
        return self._start("rollout", grpo_step, self._take(self.order, grpo_step * count))

    def start_refill(self, grpo_step: int, round_number: int) -> Any:
        """Request completions of other prompts, for a further round (>= 1) of dynamic sampling."""
        count, rounds = self.config.trainer.prompts_per_step, self.config.algorithm.dynamic_sampling_rounds
        rows = self._take(self.refill_order, (grpo_step * rounds + round_number) * count)
        return self._start(f"refill-{round_number}", grpo_step, rows)

    def _take(self, order: Order, position: int) -> list[int]:
        count, curriculum = self.config.trainer.prompts_per_step, self.config.data.curriculum
        if curriculum is None:
            return order.take(position, count)
        candidates = list_candidates(order, position, count, curriculum.candidates)
        seed, ids = self.config.seed, self.ids
        return choose_rows(candidates, ids, self.find_rates(), curriculum, seed=seed, position=position)

    def _start(self, purpose: str, grpo_step: int, rows: Sequence[int]) -> Any:
        step = self.config.warmup.num_steps + grpo_step
        spec = build_spec(self.config, purpose, step, self.config.algorithm.group_size)
        return self.rollouts.start([self.prompts[row] for row in rows], spec)

    def finish(self, pending: Any, within_s: float | None) -> Batch:
        """Wait for the completions and score them; outside of the loop's thread when sampling ahead."""

        from slurm_rl.algorithms.group_reward import apply_group_reward

        timer = Timer()
        scored = self.rollouts.finish(pending, timer, within_s)
        if self.config.algorithm.group_reward is not None:
            with timer.phase("reward"):
                scored = apply_group_reward(self.config.algorithm.group_reward, scored)
        scored = shape_overlong(scored, self.config.algorithm.overlong, self.max_tokens)
        return Batch(scored, timer.seconds)


@dataclass(frozen=True)
class Collected:
    """Sampled groups of one step, and its batch."""

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


class BatchCollector:
    """Returns the batch of each step: from the engines, from batches sampled ahead, or from rollouts on disk."""

    def __init__(self, config: RunConfig, run: RunDir, source: BatchSource, pipeline: RolloutPipeline[Any]) -> None:
        self.config, self.run_dir, self.source, self.pipeline = config, run, source, pipeline
        self.failures = FailureWatch(config.reward.max_failure_rate)

    def take(self, step: int, timer: Timer) -> Collected:
        """Return the sampled and scored groups of GRPO step `step` (>= 0).

        Args:
            timer: records the phases rollout, reward, refill, and hidden (time of a batch during training).

        Raises:
            RewardError: too many rewards failed.
        """
        rollout, run_step = self.config.rollout, self.config.warmup.num_steps + step
        if rollout.replay is not None:
            with timer.phase("rollout"):
                groups = replay_groups(Path(rollout.replay), run_step)
            return Collected(groups, groups, 1)
        first = self._take_sampled(step, timer)
        try:
            collected = collect_groups(
                lambda number: self._refill(step, number, timer) if number else first.groups,
                self.config.trainer.prompts_per_step,
                self.config.algorithm.dynamic_sampling_rounds,
            )
        except StopRequested:
            if self.pipeline.staleness:
                self.pipeline.put_back(step, first)  # its weights are lost on resume
            raise
        self.failures.check([result for group in collected.sampled for result in group.results])
        if rollout.dump:
            dump_groups(self.run_dir.rollouts, run_step, collected.groups)
        return collected

    def _take_sampled(self, step: int, timer: Timer) -> Batch:
        with timer.phase("rollout"):
            batch = self.pipeline.take(step)
        waited, seconds = timer.seconds["time/rollout_s"], timer.seconds
        if self.pipeline.staleness == 0:
            apart = {name: value for name, value in batch.seconds.items() if name != "time/rollout_s"}
            seconds |= {"time/reward_s": 0.0, **apart}
            seconds["time/rollout_s"] -= sum(apart.values())
        else:
            seconds["time/hidden_s"] = max(sum(batch.seconds.values()) - waited, 0.0)
        return batch

    def _refill(self, step: int, number: int, timer: Timer) -> list[Group]:
        """Request other prompts for dynamic sampling."""
        with timer.phase("refill"):
            return self.pipeline.draw(lambda: self.source.start_refill(step, number)).groups
