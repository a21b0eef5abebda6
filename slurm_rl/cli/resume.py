"""`resume`: submit the same plan again; the trainer goes on from the newest checkpoint."""

from __future__ import annotations

import shlex
import sys

from slurm_rl.cli.common import find_run
from slurm_rl.cli.submit import announce_and_follow, check_cluster
from slurm_rl.errors import RunDirError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import read_json
from slurm_rl.slurm.jobs import is_job_alive
from slurm_rl.slurm.submit import submit_run


def run(words: list[str]) -> int:
    directory = find_run(words)
    if is_job_alive(directory):
        raise RunDirError(
            "a run that is going cannot be resumed",
            seen=str(directory.path),
            action=f"wait, or end it first: python -m slurm_rl cancel {shlex.quote(str(directory.path))}",
        )
    plan = JobPlan.from_json(read_json(directory.plan))
    check_cluster(plan)
    print(f"resuming with the same plan and code: {directory.plan}", file=sys.stderr)
    return announce_and_follow(directory, plan, submit_run(directory, plan))
