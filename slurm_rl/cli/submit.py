"""`submit`: check, write the run directory, start the job, and in the foreground follow it."""

from __future__ import annotations

import os
import shlex
import sys

from slurm_rl.cli.checks import check_inputs
from slurm_rl.cli.common import compose_run
from slurm_rl.cli.foreground import follow_to_the_end
from slurm_rl.cli.image_line import check_image_is_there, describe_image
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir
from slurm_rl.slurm.jobs import OF_THIS_MACHINE
from slurm_rl.slurm.submit import Submitted, check_is_free, create_run, remove_run, submit_run


def run(words: list[str]) -> int:
    config, plan, directory = compose_run(words)
    check_launcher(plan)
    check_is_free(directory)
    check_inputs(config)
    check_cluster(plan)
    create_run(directory, config, plan)
    try:
        submitted = submit_run(directory, plan)
    except SlurmRLError:
        remove_run(directory)
        raise
    return announce_and_follow(directory, plan, submitted)


def check_launcher(plan: JobPlan) -> None:
    """Refuse machines that nobody but the user can start."""
    if plan.launcher == "machines":
        raise ConfigError(
            "a run on machines without Slurm starts on each of them",
            seen="submit, with cluster.launcher=machines",
            action="python -m slurm_rl node and the same overrides, on every machine",
        )


def check_cluster(plan: JobPlan) -> None:
    """Ask the cluster, when there is one, whether it takes this job; and whether its image is there."""
    check_image_is_there(plan)
    if plan.address is not None:
        from slurm_rl.ray_jobs.submit import check_ray_cluster, open_dashboard

        check_ray_cluster(plan, open_dashboard(plan.address))
    if plan.launcher == "slurm":
        from slurm_rl.slurm.admission import check_admission

        check_admission(plan)


def announce_and_follow(directory: RunDir, plan: JobPlan, submitted: Submitted) -> int:
    """Say where the run is; return at once from a cluster, at the end of the run from this machine."""
    lines = [describe(directory, submitted), describe_image(plan), describe_ray(plan)]
    print("\n".join(filter(None, lines)), file=sys.stderr, flush=True)
    return follow_to_the_end(directory, submitted) if plan.launcher in OF_THIS_MACHINE else 0


def describe_ray(plan: JobPlan) -> str | None:
    """Where the cluster's own side is; None without one."""
    if plan.address is None:
        return None
    from slurm_rl.ray_jobs.submit import describe_unsent

    lines = [f"ray     {plan.address}, which writes to {plan.run_dir}", describe_unsent(os.environ, plan.secret_names)]
    return "\n".join(filter(None, lines))


def describe(directory: RunDir, submitted: Submitted) -> str:
    """What is where, and the commands to go on with."""
    path = shlex.quote(str(directory.path))
    return "\n".join(
        [
            f"run     {directory.path}",
            f"job     {submitted.job_id}",
            f"log     {directory.attempts / 'latest' / 'logs'}",
            f"follow  python -m slurm_rl logs -f {path}",
            f"status  python -m slurm_rl status {path}",
            f"cancel  python -m slurm_rl cancel {path}",
        ]
    )
