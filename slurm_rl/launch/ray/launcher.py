"""Launcher for an existing Ray cluster, through its dashboard."""

import hashlib
import io
import os
import secrets
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.errors import ConfigError, SlurmRLError, SubmitError, UnknownJobError
from slurm_rl.launch.controller.agents import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_STARTED,
    MOST,
    NO_PYTHON,
    OURS,
    choose_telling,
    explain,
)
from slurm_rl.launch.controller.attempts import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from slurm_rl.launch.controller.create import require_own_run
from slurm_rl.launch.controller.record import Job, RunState, record_failed
from slurm_rl.launch.protocol import Launcher, Submitted
from slurm_rl.launch.ray.dashboard import TOKEN_VARIABLE, Dashboard, RayUnavailableError
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import build_request
from slurm_rl.plan.versions import satisfies
from slurm_rl.run_dir.run_dir import RunDir, read_json

_WORDS = {"PENDING": "pending", "RUNNING": "running", "SUCCEEDED": "finished", "FAILED": "failed"}
_MOST_MESSAGE = 500
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
LIMIT_MB = 32
"""The package is about 1 MB; Ray keeps the zip in its head's memory."""
# Constant, so that equal files give equal bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


class RayLauncher(Launcher):
    """See `Launcher`."""

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        assert plan.address is not None
        check_ray_cluster(plan, open_dashboard(plan.address))
        notes = [f"ray     {plan.address}, which writes to {plan.run_dir}"]
        # Ray shows the environment of a job to all users of the cluster.
        if found := shlex.join(name for name in plan.secret_names if os.environ.get(name)):
            notes.append(f"secrets {found}: not sent; the cluster's own environment must have them")
        return plan, notes

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        assert plan.address is not None
        dashboard = open_dashboard(plan.address)
        check_ray_cluster(plan, dashboard)
        package, content = build_package(run)
        if not dashboard.has_package(package):
            dashboard.upload_package(package, content)
        job_id = f"{plan.name}-{secrets.token_hex(4)}"
        try:
            dashboard.submit(build_request(plan, job_id, f"gcs://{package}"))
        except RayUnavailableError:
            # Perhaps only the reply was lost; the name of the job is ours, so query it.
            try:
                found = dashboard.find_job(job_id)
            except SlurmRLError as error:
                action = f"`ray job stop {job_id}` ends it, if it is there"
                raise UnknownJobError(
                    "Ray may have accepted the job but does not answer", seen=str(error), action=action
                ) from None
            if found is None:
                raise
        return Submitted(job_id, {"address": plan.address})

    def read_states(self, jobs: Sequence[Job]) -> list[RunState]:
        return [_read_state(job) for job in jobs]

    def cancel(self, jobs: Sequence[Job]) -> int:
        number = 0
        for job in jobs:
            dashboard = open_recorded(job)
            found = dashboard.find_job(job.job_id)
            if found is not None and found.is_alive:
                dashboard.stop(job.job_id)
                number += 1
        return number

    def read_log(self, job: Job) -> str | None:
        return open_recorded(job).read_logs(job.job_id)

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float, *, num_nodes: int = 1) -> list[str]:
        raise ConfigError(
            "a Ray cluster has its own image",
            seen=f"cluster.address={plan.address}",
            action="submit the run: it checks the image at its start",
        )


def open_recorded(job: Job) -> Dashboard:
    """Return the cluster of job.json, which gets our token. Raises RunDirError if another user wrote job.json."""
    require_own_run(job.run)
    assert job.address is not None
    return open_dashboard(job.address)


def _read_state(job: Job) -> RunState:
    where = f"job {job.job_id} of the Ray cluster at {job.address}"
    try:
        found = open_recorded(job).find_job(job.job_id)
    except SlurmRLError as error:
        return RunState("unknown", str(error), error=error)
    if found is None:
        return RunState("dead", f"Ray knows no {where}")
    if found.exit_code is not None and (cause := explain_entrypoint(job.run, found.message, found.exit_code)):
        return record_failed(job.run, cause)
    stopped = found.status == "STOPPED" or found.exit_code == EXIT_INTERRUPTED
    word = "interrupted" if stopped else _WORDS.get(found.status, "unknown")
    detail = where if word in ("running", "finished") else f"{where}: {found.message[-_MOST_MESSAGE:].strip()}"
    return RunState(word, detail.rstrip(": "), is_alive=found.is_alive)


def explain_entrypoint(run: RunDir, message: str, exit_code: int) -> str | None:
    """Return why a job ended before it had a run directory, from the end of its output; else None."""
    lines = choose_telling(message.splitlines())
    if exit_code == EXIT_BAD_INPUT and lines and lines[-1].startswith(OURS):
        return lines[-1].removeprefix(OURS)
    if exit_code in (EXIT_NOT_EXECUTABLE, EXIT_NOT_STARTED):
        # The shell's own line may be anywhere in Ray's message, or nowhere.
        causes = [line for line in lines if NO_PYTHON.search(line)] or [f"exit status {exit_code}: not found"]
        return explain(causes[-1][-MOST:], exit_code, JobPlan.from_json(read_json(run.plan)).python)
    return None


def open_dashboard(address: str, environ: Mapping[str, str] = os.environ) -> Dashboard:
    """Return the cluster, with the token from RAY_AUTH_TOKEN or from the file of RAY_AUTH_TOKEN_PATH."""
    token, path = environ.get(TOKEN_VARIABLE), environ.get(TOKEN_PATH_VARIABLE)
    if not token and path:
        try:
            token = Path(path).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{TOKEN_PATH_VARIABLE} must name a file that can be read", seen=str(error)) from None
    return Dashboard(address, token)


def check_ray_cluster(plan: JobPlan, dashboard: Dashboard) -> None:
    """Check address, token and version of Ray.

    Raises:
        SubmitError: one of them is wrong.
        RayUnavailableError: no answer in time.
    """
    seen, wanted = dashboard.ray_version(), plan.expected.get("ray", "")
    if not satisfies(seen, wanted):
        raise SubmitError(
            f"the Ray cluster at {dashboard.address} must run Ray {wanted.removeprefix('==')}, as the trainer does",
            seen=seen,
            action="create the cluster from an image with that Ray, or use a slurm_rl release for this Ray",
        )


def build_package(run: RunDir) -> tuple[str, bytes]:
    """Return name and content of a zip with the run's code snapshot, config and plan.

    The name is a hash of the content, so that a resumed run sends nothing twice.

    Raises:
        ConfigError: it is larger than LIMIT_MB.
    """
    files = {path.relative_to(run.code).as_posix(): path for path in sorted(run.code.rglob("*")) if path.is_file()}
    files = {name: path for name, path in files.items() if "__pycache__" not in name.split("/")}
    files |= {"run/config.yaml": run.config, "run/plan.json": run.plan}
    _check_size(files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, files[name].read_bytes())
    content = buffer.getvalue()
    return f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:32]}.zip", content


def _check_size(files: dict[str, Path]) -> None:
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total > LIMIT_MB * 1e6:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        raise ConfigError(
            f"the code sent to a Ray cluster must be at most {LIMIT_MB} MB",
            seen=f"{total / 1e6:.0f} MB, most of it " + ", ".join(f"{n} ({sizes[n] / 1e6:.0f} MB)" for n in largest),
            action=(
                "remove these files from the package folder; put data and models on a path that the cluster can read"
            ),
        )
