"""`submit`: check, write the run directory, start the job, and in the foreground follow it."""

from __future__ import annotations

import shlex
import sys

from slurm_rl.cli.checks import check_submission
from slurm_rl.cli.common import check_overrides, compose_run
from slurm_rl.cli.foreground import follow_to_the_end
from slurm_rl.cli.words import Words, read_words
from slurm_rl.config.load import compose, conf_dir, register_schema, site_dirs
from slurm_rl.config.overrides import normalise_words
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.image.files import describe_image
from slurm_rl.job.create import create_run, remove_run
from slurm_rl.launchers.jobs import open_launcher, submit_run
from slurm_rl.launchers.protocol import Submitted
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir

_SHOWING = ("cfg", "info", "package", "hydra_help", "shell_completion")


def run(words: list[str]) -> int:
    told = read_words("submit", words)
    flags = told.flags
    if any(getattr(flags, name) for name in _SHOWING):
        return _run_hydra(words, told)
    if flags.multirun:
        from slurm_rl.cli.sweep import run_sweep

        return run_sweep(told)
    if flags.metric is not None or flags.min:
        raise ConfigError("--metric and --min are of a sweep", seen=" ".join(words), action="add -m, or leave them out")
    return _submit(told)


def _run_hydra(words: list[str], told: Words) -> int:
    """Hand the words to Hydra's own main, which prints; what would not compose is told in our words first.

    Raises:
        ConfigError: the overrides do not compose.
    """
    import hydra

    register_schema()
    if told.flags.cfg or told.flags.info:
        compose(check_overrides(told.rest), config_dir=told.flags.config_dir)
    # --config-dir is a flag of Hydra's, too; the variable is ours alone.
    search_path = [f"hydra.searchpath=[file://{folder}]" for folder in site_dirs(None)]
    sys.argv = ["python -m slurm_rl", *normalise_words(words), *search_path]

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def application(config: object) -> None:
        raise AssertionError("only flags that print reach Hydra's main")

    try:
        application()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2 if end.code else 0
    return 0


def _submit(told: Words) -> int:
    config, plan, directory = compose_run(told.rest, told.flags.config_dir)
    check_submission(config, plan, directory)
    plan = ask_cluster(plan)
    create_run(directory, config, plan)
    try:
        submitted = submit_run(directory, plan)
    except SlurmRLError:
        remove_run(directory)
        raise
    return announce_and_follow(directory, plan, submitted)


def ask_cluster(plan: JobPlan) -> JobPlan:
    """Ask the launcher whether it takes this job, and pass on what it says.

    Returns:
        The plan in the cluster's own words.

    Raises:
        ConfigError, SubmitError: it does not, in its own words.
    """
    plan, notes = open_launcher(plan.launcher).check(plan)
    for line in notes:
        print(line, file=sys.stderr, flush=True)
    return plan


def announce_and_follow(directory: RunDir, plan: JobPlan, submitted: Submitted) -> int:
    """Say where the run is; return at once from a cluster, at the end of the run from this machine."""
    path = shlex.quote(str(directory.path))
    lines = [
        f"run     {directory.path}",
        f"job     {submitted.job_id}",
        f"log     {directory.attempts / 'latest' / 'logs'}",
        f"follow  python -m slurm_rl logs -f {path}",
        f"status  python -m slurm_rl status {path}",
        f"cancel  python -m slurm_rl cancel {path}",
        describe_image(plan),
    ]
    print("\n".join(filter(None, lines)), file=sys.stderr, flush=True)
    return 0 if submitted.process is None else follow_to_the_end(directory, submitted.process)
