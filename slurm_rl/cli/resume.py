"""`resume`: submit the same plan again; the trainer goes on from the newest checkpoint."""

from __future__ import annotations

import shlex
import sys

from slurm_rl.cli.common import find_run
from slurm_rl.cli.submit import announce_and_follow, check_cluster
from slurm_rl.errors import RunDirError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir, read_json
from slurm_rl.slurm.jobs import is_job_alive
from slurm_rl.slurm.submit import submit_run


def run(words: list[str]) -> int:
    directory = find_run(words)
    plan = JobPlan.from_json(read_json(directory.plan))
    if plan.launcher == "machines":
        from slurm_rl.cli.node import run as run_node

        # The head looks whether the run is over; the other machines may come when it goes on already.
        return run_node(["--run", str(directory.path)])
    check_is_over(directory)
    check_cluster(plan)
    print(f"resuming with the same plan and code: {directory.plan}", file=sys.stderr)
    return announce_and_follow(directory, plan, submit_run(directory, plan))


def check_is_over(directory: RunDir) -> None:
    """Raise RunDirError when the run's job has not ended."""
    if is_job_alive(directory):
        raise RunDirError(
            "a run that is going cannot be resumed",
            seen=str(directory.path),
            action=f"wait, or end it first: python -m slurm_rl cancel {shlex.quote(str(directory.path))}",
        )
