"""Who may drive a run: its controller holds the lease, and so does a command that resumes it while it submits."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping

from slurm_rl.disk import describe_disk, next_action, say
from slurm_rl.errors import RunDirError, SlurmRLError
from slurm_rl.holder import RESUME, Holder
from slurm_rl.launchers.jobs import is_job_alive
from slurm_rl.launchers.slurm import commands
from slurm_rl.lease import Lease, read_standing, take
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir, read_json, write_json

LOCAL_JOB_VARIABLE = "SUBMITIT_LOCAL_JOB_ID"
"""In a controller without Slurm: the number of the process that `submit` started."""


def take_run(run: RunDir, plan: JobPlan, is_stopped: Callable[[], bool]) -> Lease:
    """The run is this controller's from here on, and `run` knows its epoch.

    Raises:
        LeaseError: another controller has it and lives.
        RunDirError: the run directory cannot be written.
    """
    job_id = _own_job_id(plan, os.environ)
    own = Holder.of_this_process(plan.launcher, job_id or str(os.getpid()), _num_restarts(os.environ))
    lease = _take(run, own, is_stopped)
    run.epoch = lease.epoch
    # Who submitted writes it later, or never if it died; of two at one moment, the other's may stand there.
    if job_id and (not run.job.is_file() or read_json(run.job)["job_id"] != job_id):
        where = {} if plan.launcher == "slurm" else {"host": socket.gethostname()}
        write_json(run.job, {"launcher": plan.launcher, "job_id": job_id, **where})
    return lease


@contextlib.contextmanager
def held_to_resume(run: RunDir) -> Iterator[None]:
    """Of several commands that resume a run at once, one gets in here, and none while the run's job is there.

    Raises:
        LeaseError: another command, or a controller that lives, has the run.
        RunDirError: its job has not ended; or the run directory cannot be written.
    """
    with _take(run, Holder.of_this_process(RESUME, str(os.getpid()))):
        # A job that waits in a queue has no controller yet.
        if is_job_alive(run):
            raise RunDirError(
                "a run that is going cannot be resumed",
                seen=str(run.path),
                action=f"wait, or end it first: python -m slurm_rl cancel {shlex.quote(str(run.path))}",
            )
        yield


def _take(run: RunDir, own: Holder, is_stopped: Callable[[], bool] = lambda: False) -> Lease:
    try:
        return take(run.lease, own, is_job_open, is_stopped=is_stopped, on_wait=say)
    except OSError as error:
        raise RunDirError(
            f"the run directory must be writable ({error.strerror}; {describe_disk(run.path)})",
            seen=str(run.path),
            action=f"{next_action(error)}, then resume",
        ) from error


def is_job_open(holder: Holder) -> bool:
    """Whether Slurm says that the holder's job has not ended; where it does not answer, the holder's own beat tells."""
    if holder.launcher != "slurm":
        return False
    try:
        found = commands.query_jobs([holder.job]).get(holder.job)
    except SlurmRLError:
        return False
    return found is not None and not found.state.is_ended


def own_epoch(run: RunDir, plan: JobPlan) -> int:
    """The epoch of this job's newest controller, for the process that keeps it; 0 when another job has the run."""
    standing = read_standing(run.lease)
    holder = standing.holder if standing else None
    mine = (plan.launcher, _own_job_id(plan, os.environ), _num_restarts(os.environ))
    is_mine = holder is not None and (holder.launcher, holder.job, holder.restart) == mine
    return standing.epoch if standing and is_mine else 0


def _own_job_id(plan: JobPlan, environ: Mapping[str, str]) -> str | None:
    """As job.json has it; None for a controller that nobody submitted."""
    if plan.launcher == "slurm":
        return commands.element_id(environ["SLURM_JOB_ID"], environ)
    return environ.get(LOCAL_JOB_VARIABLE)


def _num_restarts(environ: Mapping[str, str]) -> int:
    return int(environ.get("SLURM_RESTART_COUNT", 0))
