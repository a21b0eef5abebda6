"""Acquire the lock of a run, for its controller or for a command that resumes it."""

from __future__ import annotations

from collections.abc import Callable

from slurm_rl.launch.controller.allocation import Allocation
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.lock_holder import LockHolder
from slurm_rl.run_dir.run_dir import RunDir, expect_writable, read_json, write_json
from slurm_rl.run_dir.run_lock import RunLock, acquire, read_lock


def take_run(run: RunDir, allocation: Allocation, is_stopped: Callable[[], bool]) -> RunLock:
    """Acquire the lock for this controller and set `run.epoch`.

    Raises:
        LeaseError: a live controller holds the lock.
        RunDirError: the run directory cannot be written.
    """
    lease = hold(run, allocation.holder(), allocation.is_known_alive, is_stopped)
    run.epoch = lease.epoch
    job = allocation.job
    # The submitting process writes it later, or never if it died; with two at once, it may have the other id.
    if job and (not run.job.is_file() or read_json(run.job)["job_id"] != job["job_id"]):
        write_json(run.job, job)
    return lease


def hold(
    run: RunDir,
    own: LockHolder,
    is_known_alive: Callable[[LockHolder], bool] = lambda holder: False,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    then: str = "then resume",
) -> RunLock:
    """Acquire the lock of a run; raises the errors of `take_run`.

    Args:
        then: next action of the user once the run directory is writable.
    """
    with expect_writable(run.path, then):
        return acquire(run.lease, own, is_known_alive, is_stopped=is_stopped, on_wait=log_to_stderr)


def own_epoch(run: RunDir, own: LockHolder) -> int:
    """Return the epoch of this job's newest controller, for its supervisor; 0 if another job holds the lock."""
    standing = read_lock(run.lease)
    holder = standing.holder if standing else None
    mine = (own.launcher, own.job, own.restart)
    is_mine = holder is not None and (holder.launcher, holder.job, holder.restart) == mine
    return standing.epoch if standing and is_mine else 0
