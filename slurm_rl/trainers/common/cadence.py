"""How often the loop saves: every so many steps, or, where checkpoint.interval is auto, as Young and Daly say.

When one saves changes no digit of a run, since a checkpoint holds what the loop would have gone on with. So clocks may
decide it.
"""

from __future__ import annotations

from statistics import median
from typing import Protocol

from slurm_rl.config.run import RunConfig
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.save_times import FIRST_EVERY, LEAST_SAVES, Measured, choose_every, read_learned


class Times(Protocol):
    """What the step log remembers of this attempt."""

    def recent(self, *, save: bool) -> list[float]:
        """Seconds of the newest steps, or of the newest saves."""


class Cadence:
    """When the next save is due.

    Args:
        every: steps; None: auto.
        learned: over all attempts before this one.
        num_nodes: of the run.
        limit_s: of the job; None: it has none.
    """

    def __init__(self, every: int | None, learned: Measured, num_nodes: int, limit_s: float | None) -> None:
        self.is_fixed = every is not None
        self.every = every or FIRST_EVERY
        self.learned, self.limit_s = learned, limit_s
        self.mean_time_s = learned.mean_time_s(num_nodes)
        self._last = 0

    def is_due(self, step: int) -> bool:
        """After this many steps of the loop; of auto, so many after the save before."""
        if self.is_fixed or step == 0:
            return step % self.every == 0
        return step - self._last >= self.every

    def resume(self, step: int) -> None:
        """A checkpoint of this step was loaded."""
        self._last = step

    def saved(self, step: int, times: Times) -> None:
        """A save is over, at this step: look what it took."""
        self._last = step
        steps, stalls = times.recent(save=False), times.recent(save=True)
        if self.is_fixed or not steps or len(stalls) < LEAST_SAVES:
            return
        self.every = choose_every(
            self.every,
            step_s=median(steps),
            stall_s=median(stalls),
            write_s=max(self.learned.save_s, *stalls),
            mean_time_s=self.mean_time_s,
            limit_s=self.limit_s,
        )


def open_cadence(run: RunDir, config: RunConfig) -> Cadence:
    """As the config says, with what earlier attempts have taught."""
    every, limit_min = config.checkpoint.interval, config.job.time_limit_min
    limit_s = None if limit_min is None else 60.0 * limit_min
    return Cadence(None if every == "auto" else every, read_learned(run), config.cluster.num_nodes, limit_s)
