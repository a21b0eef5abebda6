"""Interface of a launcher for the command line.

`Allocation` (launch/controller/allocation.py) is the interface for the controller; both are in config/launchers.py.
"""

from __future__ import annotations

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
    """A job on its way."""

    job_id: str
    where: Mapping[str, str] = field(default_factory=dict)
    """The host of its process, or the address of its cluster, for job.json."""
    process: Any = None
    """submitit's Job, where it is a process of this machine that somebody should follow."""


class Launcher(Protocol):
    """Gets a run its machines, from the machine where the user types."""

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        """Would this plan be accepted? Asked before anything is written or queued.

        Returns:
            The plan in the cluster's own words, and lines for the user.

        Raises:
            SlurmRLError: it would not, with the cluster's words.
        """
        return plan, []

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        """Start the job of a run directory that is whole; returns at once."""

    def read_states(self, jobs: Sequence[Job]) -> list[RunState]:
        """Their states by another word than their own end, by as few questions as can be."""

    def cancel(self, jobs: Sequence[Job]) -> int:
        """Ask them to save and end; how many had not ended already."""

    def cancel_unseen(self, run: RunDir) -> list[str]:
        """The same of what runs for a directory, also a sweep's, that does not answer; which processes and jobs."""
        return []

    def cancel_number(self, job_id: str) -> list[str]:
        """The same of a queue's job."""
        return []

    def read_log(self, job: Job) -> str | None:
        """What the job printed, where the launcher alone has it; None: it is in the run directory."""
        return None

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float, *, num_nodes: int = 1) -> list[str]:
        """The command that runs this on a node, or one task on each of several, as the run's agent would be.

        Raises:
            ConfigError: there are no nodes of ours.
        """


def load_entry() -> Callable[[str], int]:
    """Return the function that a job calls with the run directory; submitit pickles it by name."""
    return load_function("slurm_rl.launch.jobs:drive_run")
