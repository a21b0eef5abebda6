"""Asking Slurm to start the job around this process again."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_rl.errors import SubmitError
from slurm_rl.launchers.slurm.command_line import SlurmUnavailableError
from slurm_rl.launchers.slurm.commands import requeue
from slurm_rl.run_dir import RunDir, append_event

POLL_S = 0.2
# A restart of Slurm's controller, an upgrade of it even.
_UNAVAILABLE_S = 900.0
# Slurm ends this process once it has put the job back.
_END_S = 90.0
# Of a job that was submitted with --no-requeue, or made so by its site: there is nothing to wait for.
_FORBIDDEN = "operation is presently disabled"


def requeue_job(run: RunDir, job_id: str, is_ended: Callable[[], bool]) -> str | None:
    """Requeue the job and wait to be ended by Slurm.

    Args:
        is_ended: whether Slurm's SIGTERM has come.

    Returns:
        Slurm's refusal in its own words; None when it did as asked.
    """
    deadline = time.monotonic() + _UNAVAILABLE_S
    refusal = None
    while not is_ended():
        try:
            requeue(job_id)
            break
        except SlurmUnavailableError as error:
            if time.monotonic() > deadline:
                return error.seen or str(error)
            time.sleep(2.0)
        except SubmitError as error:
            # Slurm requeues a preempted job by itself and refuses a second time; then the end comes all the same.
            refusal = error.seen or str(error)
            append_event(run, "job/requeue_refused", cause=refusal)
            if _FORBIDDEN in refusal.lower():
                return refusal
            break
    deadline = time.monotonic() + _END_S
    while not is_ended() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return None if is_ended() else refusal
