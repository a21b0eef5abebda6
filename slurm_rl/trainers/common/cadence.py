"""When the loop saves: every `checkpoint.interval` steps, or by the formula of Young and Daly for `auto`.

A checkpoint holds the whole state of the loop, so the time of a save changes no digit of a run and may follow the
clock.
"""

from statistics import median

from slurm_rl.config.run import RunConfig
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.save_times import FIRST_EVERY, LEAST_SAVES, Measured, choose_every, read_learned
from slurm_rl.run_dir.step_log import StepLog


class Cadence:
    """Decides which steps are saved.

    Args:
        every: steps between saves; None: auto.
        learned: times measured by earlier attempts.
        num_nodes: nodes of the run.
        limit_s: time limit of the job; None: no limit.
    """

    def __init__(self, every: int | None, learned: Measured, num_nodes: int, limit_s: float | None) -> None:
        self.is_fixed = every is not None
        self.every = every or FIRST_EVERY
        self.learned, self.limit_s = learned, limit_s
        self.mean_time_s = learned.mean_time_s(num_nodes)
        self._last = 0

    def is_due(self, step: int) -> bool:
        """Return whether to save after this step; `auto` counts from the last save."""
        if self.is_fixed or step == 0:
            return step % self.every == 0
        return step - self._last >= self.every

    def resume(self, step: int) -> None:
        """Start from the checkpoint of this step."""
        self._last = step

    def saved(self, step: int, times: StepLog) -> None:
        """Record a save at this step, and choose the next interval from the measured times."""
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
    """Return the cadence of the config, with the times measured by earlier attempts."""
    every, limit_min = config.checkpoint.interval, config.job.time_limit_min
    limit_s = None if limit_min is None else 60.0 * limit_min
    return Cadence(None if every == "auto" else every, read_learned(run), config.cluster.num_nodes, limit_s)
