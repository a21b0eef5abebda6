"""From a plan to a job: the run directory is written, submitit starts the controller."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import shutil
import signal
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import slurm_rl
from slurm_rl.config.functions import named_functions
from slurm_rl.config.run import RunConfig
from slurm_rl.disk import describe_disk, naming, next_action
from slurm_rl.errors import RunDirError, SlurmRLError
from slurm_rl.functions.read import copy_files
from slurm_rl.job.own_folder import check_is_free, require_own
from slurm_rl.launchers.jobs import OF_THIS_MACHINE
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir, append_event, write_json, write_text

ENTRY = "slurm_rl.slurm.controller:run_controller"
"""What a job's pickle names. By its name here too: it lies above this room, and is the same in every version."""
# submitit's local launcher ends a job after its time limit; ours has none.
_FOREVER_MIN = 60 * 24 * 365.0
# A sweep writes thousands of configs; the dumper in C, where PyYAML has it, takes a third of the time.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Submitted:
    """A job on its way."""

    job_id: str
    handle: Any
    """submitit's Job."""


def create_run(run: RunDir, config: RunConfig, plan: JobPlan, *, again: bool = False) -> None:
    """Write config, plan and code snapshot.

    Args:
        again: go on where this function was cut off by a requeue of its own job.

    Raises:
        RunDirError: the directory already holds a run, or other files.
    """
    check_is_free(run, again=again)
    try:
        with naming(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            snapshot_code(run.code)
            copy_functions(run.code, [config])
            write_run(run, config, plan)
    except OSError as error:
        remove_run(run)
        raise RunDirError(
            f"the run directory must be writable ({error.strerror}; {describe_disk(run.path)})",
            seen=str(run.path),
            action=f"{next_action(error)}, or choose another run_dir",
        ) from error


def write_run(run: RunDir, config: RunConfig, plan: JobPlan) -> None:
    """Write config and plan. The plan comes last: its presence says that the run directory is whole."""
    write_text(run.config, yaml.dump(config.model_dump(mode="json"), Dumper=_DUMPER, sort_keys=False))
    write_json(run.plan, plan.to_json())


def remove_run(run: RunDir) -> None:
    """Take back what `create_run` and a refused submission left; nothing has run yet."""
    for folder in (run.code, run.submitit):
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
    specs = {spec for config in configs for spec in named_functions(config).values()}
    if specs:
        copy_files(code, sorted(specs))
        _close_to_others(code)


def _close_to_others(code: Path) -> None:
    # Every attempt runs it: whoever may write it, or its folder, runs code as this user.
    for path in (code.parent, code, *code.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022)


def submit_run(run: RunDir, plan: JobPlan) -> Submitted:
    """Start the job; returns at once."""
    end = run.end.read_bytes() if run.end.is_file() else None
    run.end.unlink(missing_ok=True)
    try:
        submitted = _LAUNCHERS[plan.launcher](run, plan)
    except SlurmRLError:
        if end is not None:
            # A resume that Slurm refused: the run is still what it was.
            run.end.write_bytes(end)
        raise
    here = {"host": socket.gethostname()} if plan.launcher in OF_THIS_MACHINE else {}
    record_job(run, plan.launcher, submitted.job_id, **here, **({"address": plan.address} if plan.address else {}))
    return submitted


def record_job(run: RunDir, launcher: str, job_id: str, **where: str) -> None:
    """Write down which job the run now is; of a process the host, of a Ray cluster the address."""
    write_json(run.job, {"launcher": launcher, "job_id": job_id, **where})
    append_event(run, "job/submitted", job_id=job_id, launcher=launcher)


def _submit_locally(run: RunDir, plan: JobPlan) -> Submitted:
    import submitit

    executor = submitit.LocalExecutor(folder=run.submitit)
    executor.update_parameters(
        timeout_min=_FOREVER_MIN, stderr_to_stdout=True, gpus_per_node=plan.gpus_per_node, name=plan.name
    )
    with _environment_of_the_job(run), _without_sigint():
        job = executor.submit(pkgutil.resolve_name(ENTRY), str(run.path))
    return Submitted(str(job.job_id), job)


def _submit_to_slurm(run: RunDir, plan: JobPlan) -> Submitted:
    from slurm_rl.launchers.slurm.submitit_slurm import PlanExecutor, submit_with_umask

    job = submit_with_umask(PlanExecutor(plan), pkgutil.resolve_name(ENTRY), str(run.path))
    return Submitted(str(job.job_id), job)


def _submit_to_ray(run: RunDir, plan: JobPlan) -> Submitted:
    from slurm_rl.launchers.ray.submit import submit_to_ray

    return Submitted(submit_to_ray(run, plan), None)


_LAUNCHERS = {"local": _submit_locally, "machines": _submit_locally, "slurm": _submit_to_slurm, "ray": _submit_to_ray}


@contextlib.contextmanager
def _environment_of_the_job(run: RunDir) -> Iterator[None]:
    """The job imports the snapshot, not the checkout; a child's environment is ours at its birth."""
    path = os.pathsep.join(filter(None, [str(run.code), os.environ.get("PYTHONPATH")]))
    # Safe path: `-m` would otherwise look into the working directory, often a checkout, before the snapshot.
    changed = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    saved = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_sigint() -> Iterator[None]:
    """Children born here ignore Ctrl-C: the foreground command hears it and asks the job to save."""
    saved = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, saved)
