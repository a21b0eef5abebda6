"""`submit`: check, write the run directory, start the job, and in the foreground follow it."""

from __future__ import annotations

import os
import shlex
import sys

from slurm_rl.cli.checks import check_submission
from slurm_rl.cli.common import compose_run
from slurm_rl.cli.foreground import follow_to_the_end
from slurm_rl.cli.words import Words, read_words
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.image.files import describe_image
from slurm_rl.launchers.jobs import OF_THIS_MACHINE
from slurm_rl.launchers.submit import Submitted, create_run, remove_run, submit_run
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir

_SHOWING = ("cfg", "info", "package", "hydra_help", "shell_completion")


def run(words: list[str]) -> int:
    told = read_words("submit", words)
    flags = told.flags
    if any(getattr(flags, name) for name in _SHOWING):
        from slurm_rl.cli.hydra_app import run_hydra

        return run_hydra(words, told)
    if flags.multirun:
        from slurm_rl.cli.sweep import run_sweep

        return run_sweep(told)
    if flags.metric is not None or flags.min:
        raise ConfigError("--metric and --min are of a sweep", seen=" ".join(words), action="add -m, or leave them out")
    return _submit(told)


def _submit(told: Words) -> int:
    config, plan, directory = compose_run(told.rest, told.flags.config_dir)
    check_launcher(plan)
    check_submission(config, plan, directory)
    plan = ask_cluster(plan)
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


def ask_cluster(plan: JobPlan) -> JobPlan:
    """Ask the cluster, when there is one, whether it takes this job.

    Returns:
        The plan in the cluster's own words.

    Raises:
        ConfigError, SubmitError: it does not, in its own words.
    """
    if plan.address is not None:
        from slurm_rl.launchers.ray.submit import check_ray_cluster, open_dashboard

        check_ray_cluster(plan, open_dashboard(plan.address))
    if plan.launcher == "slurm":
        from slurm_rl.launchers.slurm.admission import check_admission
        from slurm_rl.launchers.slurm.shared_paths import warn_of_local_paths

        asked, plan = plan, check_admission(plan)
        if plan != asked:
            print(f"gpus    {plan.sbatch['gres']}, as this cluster spells {asked.sbatch['gres']}", file=sys.stderr)
        for line in warn_of_local_paths(plan):
            print(line, file=sys.stderr, flush=True)
    return plan


def announce_and_follow(directory: RunDir, plan: JobPlan, submitted: Submitted) -> int:
    """Say where the run is; return at once from a cluster, at the end of the run from this machine."""
    lines = [describe(directory, submitted), describe_image(plan), describe_ray(plan)]
    print("\n".join(filter(None, lines)), file=sys.stderr, flush=True)
    return follow_to_the_end(directory, submitted) if plan.launcher in OF_THIS_MACHINE else 0


def describe_ray(plan: JobPlan) -> str | None:
    """Where the cluster's own side is; None without one."""
    if plan.address is None:
        return None
    from slurm_rl.launchers.ray.submit import describe_unsent

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
