"""A run becomes a job of an existing Ray cluster; its states, logs and end are asked of Ray."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import ConfigError, SubmitError
from slurm_rl.launchers.ray.dashboard import TOKEN_VARIABLE, Dashboard, RayUnavailableError
from slurm_rl.plan.expected import satisfies
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.ray_request import build_request
from slurm_rl.run_dir import RunDir

TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"
LIMIT_MB = 32
"""The package is about 1 MB; Ray keeps the zip in its head's memory."""
# The earliest time that a zip can hold: the same bytes for the same files.
_TIME = (1980, 1, 1, 0, 0, 0)


def open_dashboard(address: str, environ: Mapping[str, str] = os.environ) -> Dashboard:
    """The cluster, with the token from the environment: RAY_AUTH_TOKEN, or the file RAY_AUTH_TOKEN_PATH names."""
    token, path = environ.get(TOKEN_VARIABLE), environ.get(TOKEN_PATH_VARIABLE)
    if not token and path:
        try:
            token = Path(path).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{TOKEN_PATH_VARIABLE} must name a file that can be read", seen=str(error)) from None
    return Dashboard(address, token)


def check_ray_cluster(plan: JobPlan, dashboard: Dashboard) -> None:
    """Ask the cluster whether it is there, takes our token and has the Ray that the run needs.

    Raises:
        SubmitError: a wrong address, token or version.
        RayUnavailableError: no answer in time.
    """
    seen, wanted = dashboard.ray_version(), plan.expected.get("ray", "")
    if not satisfies(seen, wanted):
        raise SubmitError(
            f"the Ray cluster at {dashboard.address} must run Ray {wanted.removeprefix('==')}, as the trainer does",
            seen=seen,
            action="make the cluster from an image with that Ray, or use the slurm_rl made for this one",
        )


def submit_to_ray(run: RunDir, plan: JobPlan) -> str:
    """Upload code and config, start the job; its id."""
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
        # The answer was lost, perhaps not the job: its name is ours, so Ray can tell.
        if dashboard.find_job(job_id) is None:
            raise
    return job_id


def build_package(run: RunDir) -> tuple[str, bytes]:
    """Name and content of one zip with the run's snapshot of the code, its config and its plan, and nothing else.

        slurm_rl/...   run/config.yaml   run/plan.json

    The name is the content's hash, so that a resumed run sends nothing twice.

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
            action="take such files out of the package's folder; data and models go on a path that the cluster sees",
        )


def describe_unsent(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Secrets stay here: Ray shows a job's environment to everybody who may look at the cluster."""
    found = shlex.join(name for name in names if environ.get(name))
    return f"secrets {found}: not sent; the cluster's own environment must have them" if found else None
