"""A run becomes a job of an existing Ray cluster; its states, logs and end are asked of Ray."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import ConfigError, SubmitError
from slurm_rl.launchers.ray.dashboard import TOKEN_VARIABLE, Dashboard, RayUnavailableError
from slurm_rl.launchers.ray.package import build_package
from slurm_rl.plan.expected import satisfies
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.ray_request import build_request
from slurm_rl.run_dir import RunDir

TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"


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
    package = build_package(run)
    if not dashboard.has_package(package.name):
        dashboard.upload_package(package.name, package.content)
    job_id = f"{plan.name}-{secrets.token_hex(4)}"
    try:
        dashboard.submit(build_request(plan, job_id, package.uri))
    except RayUnavailableError:
        # The answer was lost, perhaps not the job: its name is ours, so Ray can tell.
        if dashboard.find_job(job_id) is None:
            raise
    return job_id


def describe_unsent(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Secrets stay here: Ray shows a job's environment to everybody who may look at the cluster."""
    found = [name for name in names if environ.get(name)]
    if not found:
        return None
    return f"secrets {shlex.join(found)}: not sent; the cluster's own environment must have them"
