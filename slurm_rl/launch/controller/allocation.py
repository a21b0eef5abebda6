"""Interface of the machines of a job for the controller; one class per launcher.

| launcher | allocation |
|---|---|
| slurm | `SlurmAllocation`, launch/slurm/allocation.py: all nodes of the job, agents by one srun |
| local | `LocalAllocation`, launch/here.py: this machine |
| manual | `MachineAllocation`, launch/machines/allocation.py: pods or VMs that connect to the head |
| ray | `RayAllocation`, launch/ray/allocation.py: an existing Ray cluster; the trainer is the only agent |
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from slurm_rl.launch.controller.attempts import AttemptEnd
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir
from slurm_rl.run_dir.run_lock import LockHolder

IsStopped = Callable[[], bool]


class Nodes(Protocol):
    """The node agents of one attempt, as `subprocess.Popen` has a process."""

    @property
    def returncode(self) -> int | None:
        """Exit status once all agents have ended: 0, or the highest."""

    def poll(self) -> int | None:
        """Return None while an agent runs, then `returncode`."""

    def send_signal(self, sig: int, /) -> None:
        """Send the signal to every agent; SIGUSR2 requests a checkpoint and the end."""

    def terminate(self) -> None:
        """End agents that do not react to SIGUSR2."""


class Allocation(Protocol):
    """The machines of one job, from its start to its end. The defaults fit a job that no scheduler restarts; a launcher
    overrides them."""

    run_dir: RunDir
    job_key: str
    """Name of the job in the run directory; the same after a requeue."""
    num_agents: int
    """Agents of an attempt that write a record."""
    job: Mapping[str, str] | None = None
    """Content of job.json; None if that file is not on this machine."""

    earlier: Sequence[str] = ()
    """Keys of the jobs that this one follows, whose attempts count for it."""
    signals_limit: bool = False
    """True if the scheduler sends a signal `limits.checkpoint_lead_s` before the time limit."""

    @property
    def has_nodes(self) -> bool:
        """True if enough healthy nodes remain for another attempt."""
        return True

    @property
    def notice(self) -> str | None:
        """Reason for an announced preemption, other than the time limit; None without one."""
        return None

    def ends_at(self) -> float | None:
        """Return the current deadline of the job, in seconds since 1970; None if unknown."""
        return None

    def holder(self) -> LockHolder:
        """Return this process as a holder of the run lock."""

    def is_known_alive(self, holder: LockHolder) -> bool:
        """Return True if a scheduler reports that the job of `holder` runs; otherwise its heartbeat decides."""
        return False

    def adopt(self) -> str | None:
        """Find `earlier`, with the run's lock; return the reason if this job must not run."""
        return None

    def secure(self) -> None:
        """Prepare for the end of a job that its scheduler will not restart."""
        return

    def is_taken_back(self) -> bool:
        """Return True if the scheduler sent the SIGTERM, for a preemption or a time limit."""
        return False

    def prepare(self, attempt: AttemptDir) -> dict[str, Any]:
        """Create the secrets of the attempt before its nodes start; return fields of its start.json."""
        return {}

    def start(self, attempt: AttemptDir, is_stopped: IsStopped) -> Nodes | None:
        """Check nodes and start their agents; return None if `is_stopped`. Raises SlurmRLError if too few are fit."""

    def settle(self, attempt: AttemptDir, status: int, *, is_late: bool) -> None:
        """Write a record with the cause for agents without one; `is_late`: they missed the start deadline."""
        return

    def judge(self, attempt: AttemptDir, end: AttemptEnd) -> AttemptEnd:
        """Clean nodes after an agent died. The outcome of an attempt that lost a node is `lost`."""
        return end

    def start_copy(self, attempt: AttemptDir) -> Nodes | None:
        """Start `wrap_copy`; return None without a machine. Raises SlurmRLError or OSError if it fails."""
        return None

    def holding(self) -> dict[str, Any]:
        """Return the scheduler's facts on this start of the job, for the goodput ledger: `nodes`, `queued_since` and
        `start_time`, the times in seconds since 1970."""
        return {}

    def find_lost(self, attempt: int) -> list[str]:
        """Return the machines out of service, for an attempt that a killed controller left."""
        return []

    def requeue(self, end: AttemptEnd, is_ended: IsStopped) -> str | None:
        """Requeue the job after an attempt and wait for the end of this start; return the reason if that fails."""
        return f"this job is not restarted. Next: python -m slurm_rl resume {shlex.quote(str(self.run_dir.path))}"

    def abandon(self, cause: str) -> None:
        """End agents that are not descendants of this process, without access to the run directory, which hangs after a
        stop request."""
        return

    def close(self, end: dict[str, Any]) -> None:
        """Send the end of the job to processes that wait on the machines; others read end.json or the exit status."""
        return


class UnscheduledAllocation(Allocation):
    """Base for controllers without a scheduler, which enforce job.time_limit themselves."""

    def __init__(self, run: RunDir, plan: JobPlan, job_key: str) -> None:
        self.run_dir, self.plan, self.job_key = run, plan, job_key
        limit = plan.limits.time_limit_min
        self._ends_at = None if limit is None else time.monotonic() + limit * 60.0

    def ends_at(self) -> float | None:
        return None if self._ends_at is None else time.time() + self._ends_at - time.monotonic()

    def holder(self) -> LockHolder:
        return LockHolder.of_this_process(self.plan.launcher, self.job["job_id"] if self.job else self.job_key)
