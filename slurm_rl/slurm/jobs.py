"""The job of a run: is it alive, and how is it ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from slurm_rl.run_dir import RunDir, read_json
from slurm_rl.slurm import commands
from slurm_rl.slurm.states import JobState


def load_job(run: RunDir) -> dict[str, Any] | None:
    """What submit recorded; None when the run was never submitted."""
    found: dict[str, Any] | None = read_json(run.job) if run.job.is_file() else None
    return found


def is_job_alive(run: RunDir) -> bool:
    """Whether the newest job of this run has not ended yet; a queued one is alive."""
    job = load_job(run)
    if job is None or run.end.is_file():
        return False
    if job["launcher"] == "local":
        return _is_local_alive(run, int(job["job_id"]))
    state = query_state(job["job_id"])
    return state is not None and not state.is_ended


def query_state(job_id: str) -> JobState | None:
    """Slurm's view of the job; None when it has forgotten it."""
    found = commands.query_jobs([job_id]).get(job_id)
    return found.state if found else None


def cancel_job(run: RunDir) -> bool:
    """Ask the job to save and end; False when it is not alive."""
    job = load_job(run)
    if job is None or not is_job_alive(run):
        return False
    if job["launcher"] == "local":
        os.kill(int(job["job_id"]), signal.SIGTERM)
    elif query_state(job["job_id"]) == JobState.RUNNING:
        # To the controller alone: it saves first, which a plain scancel's KillWait may be too short for.
        commands.cancel([job["job_id"]], signal="TERM")
    else:
        commands.cancel([job["job_id"]])
    return True


def _is_local_alive(run: RunDir, pid: int) -> bool:
    # A process id may have been given to somebody else since; submitit's launcher names our folder.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(run.submitit).encode() in words
