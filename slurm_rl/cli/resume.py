"""`resume`: submit the same plan again; the trainer goes on from the newest checkpoint."""

from __future__ import annotations

from slurm_rl.cli.common import find_run
from slurm_rl.cli.submit import submit_and_follow
from slurm_rl.errors import RunDirError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import read_json
from slurm_rl.slurm.jobs import is_job_alive


def run(words: list[str]) -> int:
    directory = find_run(words)
    if is_job_alive(directory):
        raise RunDirError(
            "a run that is going cannot be resumed",
            seen=str(directory.path),
            action=f"wait, or end it first: python -m slurm_rl cancel {directory.path}",
        )
    return submit_and_follow(directory, JobPlan.from_json(read_json(directory.plan)))
