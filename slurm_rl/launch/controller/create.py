"""Create a run directory from a plan, in a free folder that belongs to this user."""

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

import yaml

import slurm_rl
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import list_judges
from slurm_rl.config.user_files.read import copy_files
from slurm_rl.config.user_parts import named_functions, program_files
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.node.private_folder import name_of_user
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, expect_writable, write_json, write_text

# A sweep writes thousands of configs; the dumper in C takes a third of the time.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def create_run(run: RunDir, config: RunConfig, plan: JobPlan, *, again: bool = False) -> None:
    """Write config, plan and code snapshot.

    Args:
        again: continue after a requeue of the own job interrupted this function.

    Raises:
        ConfigError: the API key of a judge is not in the environment.
        RunDirError: the directory already holds a run, or other files.
    """
    check_is_free(run, again=again)
    check_judge_keys(config)
    with expect_writable(run.path, "or choose another run_dir"):
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            snapshot_code(run.code)
            copy_functions(run.code, [config])
            write_run(run, config, plan)
        except OSError:
            remove_run(run)
            raise


def check_judge_keys(config: RunConfig) -> None:
    """Raise ConfigError if the API key of a judge is not in the environment, from which the job gets it."""
    missing = {judge.api_key for judge in list_judges(config) if judge.api_key and not os.environ.get(judge.api_key)}
    if missing:
        name = min(missing)
        raise ConfigError(
            "reward.judge.api_key must name a variable that is set where the run is submitted",
            seen=f"{name} is not set",
            action=f"export {name}=...; the job gets it by name",
        )


def write_run(run: RunDir, config: RunConfig, plan: JobPlan) -> None:
    """Write config and plan. The plan comes last: its presence marks a complete run directory."""
    write_text(run.config, yaml.dump(config.model_dump(mode="json"), Dumper=_DUMPER, sort_keys=False))
    write_json(run.plan, plan.to_json())


def remove_run(run: RunDir) -> None:
    """Delete the files of `create_run` after a refused submission, before any attempt."""
    for folder in (run.code, run.submitit, run.model):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        for file in (run.plan, run.config):
            file.unlink(missing_ok=True)
        run.path.rmdir()


def snapshot_code(target: Path) -> None:
    """Copy the package, so that edits in the checkout do not reach a queued or resumed job."""
    source = Path(slurm_rl.__file__).parent
    if target in source.parents:
        return
    require_own(target.parent)
    package = target / "slurm_rl"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(
        source,
        package,
        ignore=shutil.ignore_patterns("__pycache__", "conf", "containers", "sbatch_templates"),
    )
    _close_to_others(target)


def copy_functions(code: Path, configs: Iterable[RunConfig]) -> None:
    """Copy the files of the user's functions into a snapshot, for the same reason."""
    specs = {spec for config in configs for spec in (*named_functions(config).values(), *program_files(config))}
    if specs:
        copy_files(code, sorted(specs))
        _close_to_others(code)


def _close_to_others(code: Path) -> None:
    # Every attempt runs this code: write access to it, or to its folder, lets others run code as this user.
    for path in (code.parent, code, *code.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022)


def snapshot_environment(run: RunDir) -> dict[str, str]:
    """Return the environment in which a process imports the run's snapshot, not the checkout."""
    path = os.pathsep.join(filter(None, [str(run.code), os.environ.get("PYTHONPATH")]))
    # Safe path: `-m` would otherwise look into the working directory, often a checkout, before the snapshot.
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def check_is_free(run: RunDir, *, again: bool = False) -> None:
    """Refuse a directory with anything in it; with `again`, accept an incomplete one of the own job."""
    if run.plan.exists():
        raise RunDirError(
            "run_dir must not contain another run",
            seen=str(run.path),
            action=f"continue it: python -m slurm_rl resume {shlex.quote(str(run.path))}, or choose another run_dir",
        )
    # A run would overwrite `code` or `config.yaml` of other contents.
    if not again and run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        raise RunDirError("run_dir must be a new or empty folder", seen=str(run.path), action="choose another run_dir")
    require_own(run.path)


def require_own(path: Path) -> None:
    """Raise RunDirError if another user owns the path and could replace our code or records. Links are not followed."""
    try:
        owner = path.lstat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return
    if owner != os.geteuid():
        raise RunDirError(
            "a run directory must belong to you",
            seen=f"{path} of {name_of_user(owner)}",
            action="ask that user, or choose a new run_dir",
        )


def require_own_run(run: RunDir) -> RunDir:
    """Return the run if this user owns its records; for commands that execute them. Raises RunDirError otherwise."""
    for path in (run.path.resolve(), run.plan, run.job):
        require_own(path)
    return run
