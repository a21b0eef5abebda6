"""The batch of one step: prompts sampled and scored, again with new prompts where groups carry no signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.config.run import RunConfig
from slurm_rl.rewards.failures import FailureWatch
from slurm_rl.rl.algorithm.filters import has_signal
from slurm_rl.rl.groups import Group
from slurm_rl.rl.loop.batch_source import BatchSource
from slurm_rl.rl.loop.pipeline import RolloutPipeline
from slurm_rl.rl.loop.trainer_state import dump_groups, replay_groups
from slurm_rl.rl.rollout.sampling import PendingGroups
from slurm_rl.run_dir import RunDir
from slurm_rl.train.stop import Timer


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


class BatchCollector:
    """Gives each step its batch: from the engines, from the batches sampled ahead, or from rollouts on disk."""

    def __init__(
        self, config: RunConfig, run: RunDir, source: BatchSource, pipeline: RolloutPipeline[PendingGroups]
    ) -> None:
        self.config, self.run_dir, self.source, self.pipeline = config, run, source, pipeline
        self.failures = FailureWatch(config.reward.max_failure_rate)

    def take(self, step: int, timer: Timer) -> Collected:
        """The groups of GRPO step `step` (>= 0), sampled and scored.

        Args:
            timer: gets the phases rollout, reward, refill, and hidden: what a batch took beside the loop.

        Raises:
            RewardError: too many rewards failed.
        """
        rollout, run_step = self.config.rollout, self.config.warmup.num_steps + step
        if rollout.replay is not None:
            with timer.phase("rollout"):
                groups = replay_groups(Path(rollout.replay), run_step)
            return Collected(groups, groups, 1)
        collected = collect_groups(
            lambda number: self._refill(step, number, timer) if number else self._take_sampled(step, timer),
            self.config.trainer.prompts_per_step,
            self.config.algorithm.dynamic_sampling_rounds,
        )
        self.failures.check([result for group in collected.sampled for result in group.results])
        if rollout.dump:
            dump_groups(self.run_dir.rollouts, run_step, collected.groups)
        return collected

    def _take_sampled(self, step: int, timer: Timer) -> list[Group]:
        with timer.phase("rollout"):
            batch = self.pipeline.take(step)
        waited, seconds = timer.seconds["time/rollout_s"], timer.seconds
        if self.pipeline.staleness == 0:
            seconds["time/reward_s"] = batch.seconds.get("reward", 0.0)
            seconds["time/rollout_s"] -= seconds["time/reward_s"]
        else:
            seconds["time/hidden_s"] = max(sum(batch.seconds.values()) - waited, 0.0)
        return batch.groups

    def _refill(self, step: int, number: int, timer: Timer) -> list[Group]:
        """Other prompts for dynamic sampling."""
        with timer.phase("refill"):
            return self.source.finish(self.source.start_refill(step, number), None).groups
