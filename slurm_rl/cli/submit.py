"""`submit`: write the run directory, start the job, and in the foreground follow it."""

from __future__ import annotations

import sys

from slurm_rl.cli.checks import check_inputs
from slurm_rl.cli.common import compose_run
from slurm_rl.cli.foreground import follow_to_the_end
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir
from slurm_rl.slurm.submit import Submitted, create_run, submit_run


def run(words: list[str]) -> int:
    config, plan, directory = compose_run(words)
    check_inputs(config)
    create_run(directory, config, plan)
    return submit_and_follow(directory, plan)


def submit_and_follow(directory: RunDir, plan: JobPlan) -> int:
    """Submit; return at once from a cluster, at the end of the run from this machine."""
    submitted = submit_run(directory, plan)
    print(describe(directory, submitted), file=sys.stderr, flush=True)
    return follow_to_the_end(directory, submitted) if plan.launcher == "local" else 0


def describe(directory: RunDir, submitted: Submitted) -> str:
    return "\n".join(
        [
            f"run     {directory.path}",
            f"job     {submitted.job_id}",
            f"log     {directory.attempts / 'latest' / 'logs'}",
            f"follow  python -m slurm_rl logs -f {directory.path}",
            f"cancel  python -m slurm_rl cancel {directory.path}",
        ]
    )
