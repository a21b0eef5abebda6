"""Plan a run in its directory, start it, or resume it: checks, run directory, job."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from slurm_rl import __version__
from slurm_rl.config.parse import parse_config
from slurm_rl.config.paths import expand_user
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, SlurmRLError, UnknownJobError
from slurm_rl.launch.controller.create import create_run, remove_run, require_own_run, write_run
from slurm_rl.launch.jobs import held_to_resume, open_launcher, submit_run
from slurm_rl.launch.protocol import Submitted
from slurm_rl.launch.runs.checks import check_submission
from slurm_rl.launch.runs.find import load_plan, parse_path, remember, resolve
from slurm_rl.launch.runs.interpreter import check_interpreter
from slurm_rl.launch.runs.model_shape import find_reward_shape, find_shape, find_shape_at, require_shape
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.image_file import check_image_is_there
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import SbatchOptions
from slurm_rl.run_dir.run_dir import RunDir


class Started(NamedTuple):
    """A run with a submitted job."""

    directory: RunDir
    plan: JobPlan
    submitted: Submitted


def choose_directory(config: RunConfig) -> RunDir:
    """Return `run_dir`, or <run_root>/<name>-<time> with a number if it exists; write nothing."""
    if config.run_dir:
        return RunDir(config.run_dir)
    base = Path(config.cluster.run_root) / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = parse_path(str(base)), 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return RunDir(path)


def plan_in(config: RunConfig, run: RunDir) -> JobPlan:
    """Return the plan of a run in this directory. Raises ConfigError for an impossible layout."""
    path = str(run.path)
    parse_path(path)
    # No file format or log line on the way could hold it.
    if not path.isprintable():
        raise ConfigError(
            "run_dir must be printable, without line breaks and control characters",
            seen=ascii(path),
            action="choose another run_dir",
        )
    facts = SubmitFacts(
        python=sys.executable,
        num_cpus=len(os.sched_getaffinity(0)),
        version=__version__,
        model_shape=find_shape(config.model),
        reward_shape=find_reward_shape(config.reward),
        reference_shape=find_shape_at(config.reference.path),
    )
    if not config.external:
        require_shape(config, "model.path", config.model.path, facts.model_shape)
        require_shape(config, "reference.path", config.reference.path, facts.reference_shape)
    root = config.cluster.remote_root
    plan = build_plan(config, path if root is None else str(Path(root) / run.path.name), facts)
    return plan if plan.after is None else replace(plan, after=str(resolve(str(expand_user(plan.after))).absolute()))


def start_run(
    config: RunConfig, tell: Callable[[str], object], write_model: Callable[[Path], object] | None = None
) -> Started:
    """Run all checks, write the run directory, start the job, and return at once.

    Args:
        tell: takes warnings and notes for the user, one line per call.
        write_model: called once every check has passed, with a folder in the run directory; writes the model of the run
            there. Until then model.path names a model of the same shape, for the checks.

    Raises:
        UnknownJobError: the job may be queued; the run directory stays.
        SlurmRLError: it is refused, by us or by the cluster; no files remain.
    """
    directory = choose_directory(config)
    plan = plan_in(config, directory)
    if config.cluster.detected:
        tell(f"gpus    {config.cluster.detected}")
    check_submission(config, plan, directory, tell)
    plan = ask_cluster(plan, tell)
    create_run(directory, config if write_model is None else _with_model(config, directory.model), plan)
    try:
        if write_model is not None:
            write_model(directory.model)
    except (SlurmRLError, KeyboardInterrupt):
        remove_run(directory)
        raise
    try:
        submitted = submit_run(directory, plan)
    except UnknownJobError:
        raise
    except SlurmRLError:
        remove_run(directory)
        raise
    remember(directory.path, [submitted.job_id])
    return Started(directory, plan, submitted)


def _with_model(config: RunConfig, folder: Path) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(folder)})})


def create_stages(configs: Sequence[RunConfig], tell: Callable[[str], object]) -> list[RunDir]:
    """Create the run directories of a pipeline in order, all or none; start no job."""
    made: list[RunDir] = []
    try:
        for config in configs:
            directory = choose_directory(config)
            plan = plan_in(config, directory)
            check_submission(config, plan, directory, tell, is_stage=True)
            create_run(directory, config, ask_cluster(plan, tell))
            made.append(directory)
    except SlurmRLError:
        for directory in made:
            remove_run(directory)
        raise
    return made


def resume_run(directory: RunDir, tell: Callable[[str], object], time_limit: str | None = None) -> Started:
    """Submit the same plan and code again, with another job.time_limit if given; other settings never change.

    Raises:
        SlurmRLError: the run is alive, foreign or refused, or the limit is invalid.
    """
    plan = load_plan(require_own_run(directory))
    with held_to_resume(directory):
        check_image_is_there(plan)
        changed = None if time_limit is None else _with_limit(directory, plan, time_limit)
        spelled = ask_cluster(changed[1] if changed else plan, tell)
        if changed:
            write_run(directory, *changed)
        plan, submitted = spelled, submit_run(directory, spelled)
    remember(directory.path, [submitted.job_id])
    return Started(directory, plan, submitted)


def _with_limit(run: RunDir, plan: JobPlan, time_limit: str) -> tuple[RunConfig, JobPlan]:
    """Return the run's config and plan with this job.time_limit."""
    tree = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    tree["job"]["time_limit"] = None if time_limit == "null" else time_limit
    config = parse_config(tree)
    limits = replace(plan.limits, time_limit_min=config.job.time_limit_min)
    first, *others = (_with_time(options, limits.time_limit_min) for options in (plan.sbatch, *plan.het))
    return config, replace(plan, limits=limits, sbatch=first, het=tuple(others))


def _with_time(options: SbatchOptions, minutes: int | None) -> SbatchOptions:
    others = {name: value for name, value in options.items() if name != "time"}
    return {**others, "time": minutes} if options and minutes else others


def ask_cluster(plan: JobPlan, tell: Callable[[str], object]) -> JobPlan:
    """Check the job's Python, let the launcher check the plan, and return it as the cluster spells it."""
    check_interpreter(plan, tell)
    plan, notes = open_launcher(plan.launcher).check(plan)
    for line in notes:
        tell(line)
    return plan
