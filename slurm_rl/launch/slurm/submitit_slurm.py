"""submitit's Slurm executor with our own sbatch command line and script.

submitit keeps what it is good at: the pickle with the callable, its place on disk, the Job object.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from slurm_rl.launch.slurm.commands import submit
from slurm_rl.launch.slurm.exclude import with_dependency
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import controller_command, render_batch_script, submission_argv
from slurm_rl.run_dir.run_dir import write_text


class PlanExecutor(SlurmExecutor):
    """Submits `run_controller` as the plan says."""

    def __init__(self, plan: JobPlan) -> None:
        super().__init__(folder=Path(plan.run_dir) / "submitit")
        self.plan = plan
        self.parameters = {"time": plan.limits.time_limit_min or 60 * 24, "nodes": 1, "ntasks_per_node": 1}

    @classmethod
    def affinity(cls) -> int:
        # submitit's own looks for srun, which login nodes may lack; whether there is an sbatch, sbatch shows.
        return 1

    def _submit_command(self, command: str) -> Any:
        script = Path(self.plan.run_dir) / "submitit" / "job.sh"
        write_text(script, render_batch_script(self.plan, controller_command(self.plan, self.plan.host_python)))
        options = with_dependency(self.plan.sbatch, self.plan.after)
        job_id = submit([*submission_argv(replace(self.plan, sbatch=options)), str(script)])
        return self.job_class(folder=self.folder, job_id=job_id, tasks=[0])


def submit_with_umask(executor: PlanExecutor, function: Any, argument: str) -> Any:
    """Submit with files that only this user can write: whoever writes a pickle runs code as its reader."""
    saved = os.umask(0o077)
    try:
        return executor.submit(function, argument)
    finally:
        os.umask(saved)
