"""Jobs of a Ray cluster that is there; their states and logs are asked of its dashboard."""

from __future__ import annotations

import os
from collections.abc import Sequence

from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.job.attempts import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from slurm_rl.job.create import require_own_run
from slurm_rl.job.record import Job, RunState, record_failed
from slurm_rl.job.silent import EXIT_NOT_EXECUTABLE, EXIT_NOT_STARTED, MOST, NO_PYTHON, OURS, choose_telling, explain
from slurm_rl.launchers.protocol import Launcher, Submitted
from slurm_rl.launchers.ray.dashboard import Dashboard
from slurm_rl.launchers.ray.submit import check_ray_cluster, describe_unsent, open_dashboard, submit_to_ray
from slurm_rl.plan.container import Wrapped
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir, read_json

_WORDS = {"PENDING": "pending", "RUNNING": "running", "SUCCEEDED": "finished", "FAILED": "failed"}
_MOST_MESSAGE = 500


class RayLauncher(Launcher):
    """See `Launcher`."""

    def check(self, plan: JobPlan) -> tuple[JobPlan, list[str]]:
        assert plan.address is not None
        check_ray_cluster(plan, open_dashboard(plan.address))
        unsent = describe_unsent(os.environ, plan.secret_names)
        return plan, [f"ray     {plan.address}, which writes to {plan.run_dir}", *([unsent] if unsent else [])]

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        assert plan.address is not None
        return Submitted(submit_to_ray(run, plan), {"address": plan.address})

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

    def build_probe(self, plan: JobPlan, wrapped: Wrapped, timeout_s: float) -> list[str]:
        raise ConfigError(
            "the image of a Ray cluster is its own",
            seen=f"cluster.address={plan.address}",
            action="submit: a run compares what is there with what it needs before it begins",
        )


def open_recorded(job: Job) -> Dashboard:
    """The cluster that job.json names, which gets our token.

    Raises:
        RunDirError: another user wrote it, and it may name a machine of his.
    """
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
    """Why a job of a Ray cluster ended before it had a run directory there; None when that is not how it ended.

    Args:
        message: Ray's, which ends with what the job wrote last.
    """
    lines = choose_telling(message.splitlines())
    if exit_code == EXIT_BAD_INPUT and lines and lines[-1].startswith(OURS):
        return lines[-1].removeprefix(OURS)
    if exit_code in (EXIT_NOT_EXECUTABLE, EXIT_NOT_STARTED):
        # The shell's own line may be anywhere in Ray's message, or nowhere.
        told = [line for line in lines if NO_PYTHON.search(line)] or [f"exit status {exit_code}: not found"]
        return explain(told[-1][-MOST:], exit_code, JobPlan.from_json(read_json(run.plan)).python)
    return None
