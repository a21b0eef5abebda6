"""Lead before a time limit and interval of saves, from the run's own times. Pure.

**Lead** = p95(time until the loop checks the stop flag) + p95(a save with its write) + 20 s to end processes + 60 s,
since Slurm checks limits every 30 s and may signal up to a minute early.

**Interval** by Young and Daly: T = sqrt(2 d M), d the seconds a save stalls the loop, M the mean time between ends that
lose steps; Daly's next terms (Future Generation Computer Systems 22, 2006, eq. 20) matter where d is not small against
M.
M = 1 / (nodes x rate), the rate of a node with a Gamma(1, 42 node-days) prior of mean 0.024 per node-day (Meta,
arXiv:2410.21680): (1 + ends seen) / (42 + node-days seen).
"""

import math
from dataclasses import dataclass

from slurm_rl.errors import RunDirError
from slurm_rl.run_dir.run_dir import RunDir, read_json

FIRST_EVERY = 10
"""Steps of checkpoint.interval=auto until saves were measured."""
LEAST_SAVES = 2
END_S, _EARLY_S = 20.0, 60.0
_PRIOR_ENDS, _PRIOR_NODE_DAYS = 1.0, 42.0
_DAY_S = 86400.0
_MOST_S = 3600.0
_OF_LIMIT = 6
_CHANGE = 1.3


@dataclass(frozen=True)
class Measured:
    """Measurements of a run over all its attempts."""

    num_saves: int = 0
    save_s: float = 0.0
    """p95 of a save, until it is renamed."""
    rest_s: float = 0.0
    """p95 of the rest of a step or evaluation at a stop."""
    ends: int = 0
    """Number of ends of attempts that lost steps."""
    node_days: float = 0.0

    @property
    def lead_s(self) -> int | None:
        """Return the seconds before a limit at which to stop; None before enough saves.

        >>> Measured(num_saves=3, save_s=100.0, rest_s=12.5).lead_s, Measured(num_saves=1, save_s=9.0).lead_s
        (193, None)
        """
        if self.num_saves < LEAST_SAVES:
            return None
        return math.ceil(self.rest_s + self.save_s + END_S + _EARLY_S)

    def settle_s(self, lead_s: float) -> float:
        """Return the seconds after the stop by which the save must begin, for a given lead; at most half of the lead.

        >>> Measured().settle_s(120), Measured(num_saves=3, save_s=1000.0, rest_s=12.5).settle_s(1093)
        (60.0, 73.0)
        """
        return max(0.0, min(lead_s / 2, lead_s - END_S - self.save_s))

    def mean_time_s(self, num_nodes: int) -> float:
        """Return the mean time between ends that lose steps.

        >>> [round(it.mean_time_s(128) / 3600, 1) for it in (Measured(), Measured(ends=3, node_days=128.0))]
        [7.9, 8.0]
        """
        rate = (_PRIOR_ENDS + self.ends) / (_PRIOR_NODE_DAYS + self.node_days)
        return _DAY_S / (rate * num_nodes)


def daly_s(stall_s: float, mean_time_s: float) -> float:
    """Return the optimal seconds of training between two saves.

    >>> round(daly_s(6.0, Measured().mean_time_s(2)) / 60), round(daly_s(6.0, Measured().mean_time_s(128)) / 60)
    (78, 10)
    """
    if stall_s >= 2 * mean_time_s:
        return mean_time_s
    part = stall_s / (2 * mean_time_s)
    return math.sqrt(2 * stall_s * mean_time_s) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s


def choose_every(
    every: int, *, step_s: float, stall_s: float, write_s: float, mean_time_s: float, limit_s: float | None
) -> int:
    """Return the new number of steps between saves.

    At least a step and a write, since one save is in flight; at most 60 minutes and a sixth of the time limit. Changes
    of less than 30 % are ignored.

    Args:
        every: present number of steps.
        step_s, stall_s, write_s: seconds of a step, of the loop at a save, of a save until it is renamed.
        limit_s: time limit of the job; None without one.

    >>> choose_every(10, step_s=1.0, stall_s=0.5, write_s=2.0, mean_time_s=5000.0, limit_s=None)
    70
    >>> choose_every(60, step_s=1.0, stall_s=0.5, write_s=2.0, mean_time_s=5000.0, limit_s=None)
    60
    >>> choose_every(10, step_s=1.0, stall_s=0.5, write_s=2.0, mean_time_s=5000.0, limit_s=120.0)
    20
    """
    if step_s <= 0:
        return every
    wanted_s = daly_s(max(stall_s, 1e-3), mean_time_s)
    most_s = min(_MOST_S, math.inf if limit_s is None else limit_s / _OF_LIMIT)
    wanted_s = max(write_s, min(wanted_s, most_s))
    wanted = max(1, round(wanted_s / step_s))
    return wanted if max(wanted / every, every / wanted) > _CHANGE else every


def read_learned(run: RunDir) -> Measured:
    """Return the measured times; empty in a new run, or if another version wrote the file."""
    try:
        return Measured(**read_json(run.learned))
    except (OSError, RunDirError, TypeError):
        return Measured()


def lead_in_force(run: RunDir, planned_s: int, *, learns: bool) -> int:
    """Return the seconds before a limit at which the run is stopped.

    Args:
        planned_s: lead of the plan, at which Slurm sends its own signal; a lower bound.
        learns: job.checkpoint_lead_s is auto.
    """
    return max(planned_s, read_learned(run).lead_s or 0) if learns else planned_s
