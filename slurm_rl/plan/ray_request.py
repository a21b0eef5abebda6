"""What Ray is asked to run. Pure, so that `plan` can show it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_rl.plan.job import JobPlan

_LEAST_STOP_S = 10


def build_request(plan: JobPlan, job_id: str, package_uri: str) -> dict[str, Any]:
    """Ray's JobSubmitRequest: one driver, in the shipped working directory. No secret and no token is in it."""
    python = plan.python
    return {
        "submission_id": job_id,
        "entrypoint": f"exec {shlex.join([python, '-u', '-m', 'slurm_rl.ray_jobs.inside', job_id])}",
        "runtime_env": {
            "working_dir": package_uri,
            "env_vars": {
                **plan.env,
                # `ray job stop` is SIGTERM, and SIGKILL 3 s later, in which nothing is saved.
                "RAY_JOB_STOP_WAIT_TIME_S": str(max(_LEAST_STOP_S, plan.limits.signal_lead_s)),
            },
        },
        "metadata": {"slurm_rl": plan.slurm_rl_version, "run_dir": plan.run_dir},
    }
