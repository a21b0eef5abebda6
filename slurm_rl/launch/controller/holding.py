"""Acquire the lock of a run, for its controller or for a command that resumes it."""

from __future__ import annotations

from collections.abc import Callable

from slurm_rl.launch.controller.allocation import Allocation
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.run_dir import RunDir, expect_writable, read_json, write_json
from slurm_rl.run_dir.run_lock import LockHolder, RunLock, acquire, read_lock


def take_run(run: RunDir, allocation: Allocation, is_stopped: Callable[[], bool]) -> RunLock:
    """Acquire the lock for this controller and set `run.epoch`; raises the errors of `hold`."""
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
    """Acquire the lock of a run; `then` is the next action if it is not writable. Raises LeaseError, RunDirError."""
    with expect_writable(run.path, then):
        return acquire(run.lease, own, is_known_alive, is_stopped=is_stopped, on_wait=log_to_stderr)


def own_epoch(run: RunDir, own: LockHolder) -> int:
    """Return the epoch of this job's newest controller, for its supervisor; 0 if another job holds the lock."""
    state = read_lock(run.lease)
    holder = state.holder if state else None
    mine = (own.launcher, own.job, own.restart)
    is_mine = holder is not None and (holder.launcher, holder.job, holder.restart) == mine
    return state.epoch if state and is_mine else 0
