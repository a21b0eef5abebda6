"""Interface of a launcher for the command line.

`Allocation` (launch/controller/allocation.py) is the interface for the controller; both are in config/launchers.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slurm_rl.config.user_files.load import load_function
from slurm_rl.launch.controller.record import Job, RunState
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir


@dataclass(frozen=True)
class Submitted:
    """A submitted job."""

    job_id: str
    where: Mapping[str, str] = field(default_factory=dict)
    """The host of its process, or the address of its cluster, for job.json."""
    process: Any = None
    """submitit's Job, if it is a child process of this one."""


class Launcher(Protocol):
    """Submits, queries and cancels runs from the user's machine. The defaults fit a launcher without a queue."""

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        """Check that the cluster accepts this plan, before anything is written or queued.

        Returns:
            The plan as the cluster spells it, and notes for the user.

        Raises:
            SlurmRLError: the cluster refuses, with its message.
        """
        return plan, []

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        """Start the job of a complete run directory and return at once."""

    def read_states(self, jobs: Sequence[Job]) -> list[RunState]:
        """Return the states of jobs without a recorded end, in as few queries as possible."""

    def is_alive(self, job: Job) -> bool:
        """Return True if a scheduler reports the job as not ended; otherwise its controller's heartbeat decides."""
        return False

    def cancel(self, jobs: Sequence[Job]) -> int:
        """Request jobs to save and end; return how many had not ended."""

    def cancel_unseen(self, run: RunDir) -> list[str]:
        """Cancel the jobs of a directory (also of a sweep) that does not answer; return processes and jobs."""
        return []

    def cancel_number(self, job_id: str) -> list[str]:
        """Cancel a job of a queue by its id; return the jobs."""
        return []

    def read_log(self, job: Job) -> str | None:
        """Return the output of the job; None if it is in the run directory."""
        return None

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float, *, num_nodes: int = 1) -> list[str]:
        """Return the command of `wrapped` on nodes, like an agent. Raises ConfigError if nodes are not ours."""


def load_entry() -> Callable[[str], int]:
    """Return the function that a job calls with the run directory; submitit pickles it by name."""
    return load_function("slurm_rl.launch.jobs:drive_run")
