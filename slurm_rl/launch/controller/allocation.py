"""Interface of the machines of a job for the controller; one class per launcher.

| launcher | allocation |
|---|---|
| slurm | `SlurmAllocation`, launch/slurm/allocation.py: all nodes of the job, agents by one srun |
| local | `LocalAllocation`, launch/here.py: this machine |
| manual | `MachineAllocation`, launch/machines/allocation.py: pods or VMs that connect to the head |
| ray | `RayAllocation`, launch/ray/allocation.py: an existing Ray cluster; the trainer is the only agent |
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.lock_holder import LockHolder
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir

IsStopped = Callable[[], bool]


class Nodes(Protocol):
    """The node agents of one attempt, as `subprocess.Popen` has a process."""

    @property
    def returncode(self) -> int | None:
        """Of the whole once it has ended: 0, or the worst."""

    def poll(self) -> int | None:
        """None while an agent runs; then `returncode`."""

    def send_signal(self, sig: int, /) -> None:
        """To every agent; SIGUSR2 asks to save and leave."""

    def terminate(self) -> None:
        """End agents that cannot be asked."""


class Allocation(Protocol):
    """The machines of one job, from its start to its end. What is implemented here holds where nobody could start
    the job again; a launcher overrides what it knows better."""

    run_dir: RunDir
    job_key: str
    """Names the job in the run directory; the same after a requeue."""
    num_agents: int
    """Agents of an attempt that write a record."""
    job: Mapping[str, str] | None = None
    """As job.json has it; None where that file is not on this machine."""

    signals_limit: bool = False
    """Whoever lends the machines signals `limits.checkpoint_lead_s` before it takes them back."""

    @property
    def has_nodes(self) -> bool:
        """Enough healthy ones for a further attempt."""
        return True

    @property
    def notice(self) -> str | None:
        """Why the machines are taken back soon, apart from the time limit; None while nobody said so."""
        return None

    def ends_at(self) -> float | None:
        """When the job ends at the latest as things are now, in seconds since 1970; None where nobody knows."""
        return None

    def holder(self) -> LockHolder:
        """This process, as the run's lease names it."""

    def is_known_alive(self, holder: LockHolder) -> bool:
        """Whether a scheduler says that another holder's job has not ended; else the holder's own beat tells."""
        return False

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        """Before the nodes start: secrets of the attempt. Returns fields of its start.json."""
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        """Choose and look at nodes, then start their agents; None when asked to stop meanwhile.

        Raises:
            SlurmRLError: too few nodes; with the cause.
        """

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        """Give agents that never spoke a record with the cause.

        Args:
            is_late: they were ended because they had not started in time.
        """
        return

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        """Clean nodes whose agent could not. An attempt that failed because a node is gone is `lost`."""
        return end

    def start_copy(self, attempt: AttemptDir) -> Nodes | None:
        """`wrap_copy` as a process; None where there is no machine for it.

        Raises:
            SlurmRLError, OSError: it could not be started.
        """
        return None

    def granted_at(self) -> float | None:
        """When the machines were given, in seconds since 1970; None where an attempt's own start says it."""
        return None

    def holding(self) -> dict[str, Any]:
        """What a scheduler knows of this start of the job, for the goodput ledger: `nodes` held, and when it began to
        wait (`queued_since`) and to hold them (`start_time`), in seconds since 1970."""
        return {}

    def find_lost(self, attempt: int) -> list[str]:
        """Machines of an attempt whose controller was killed that are out of service now."""
        return []

    def requeue(self, end: AttemptEnd, is_ended: IsStopped) -> str | None:
        """Have the job started again after an attempt, and wait for the end of this start; why not, else None."""
        return f"nobody starts this job again. Next: python -m slurm_rl resume {shlex.quote(str(self.run_dir.path))}"

    def abandon(self, cause: str) -> None:
        """End agents that are not below this process, since the run was asked to stop and its directory hangs; no file
        of that is touched."""
        return

    def close(self, end: dict[str, Any]) -> None:
        """Tell whoever waits on the machines how the job ended; others read end.json or the exit status."""
        return


class UnscheduledAllocation(Allocation):
    """What all have whose controller is a process that no scheduler watches: it keeps job.time_limit itself."""

    def __init__(self, run: RunDir, plan: JobPlan, job_key: str) -> None:
        self.run_dir, self.plan, self.job_key = run, plan, job_key
        limit = plan.limits.time_limit_min
        self._ends_at = None if limit is None else time.monotonic() + limit * 60.0

    def ends_at(self) -> float | None:
        return None if self._ends_at is None else time.time() + self._ends_at - time.monotonic()

    def holder(self) -> LockHolder:
        return LockHolder.of_this_process(self.plan.launcher, self.job["job_id"] if self.job else self.job_key)
