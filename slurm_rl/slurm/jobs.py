"""The job of a run: is it alive, and how is it ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from slurm_rl.run_dir import RunDir, read_json


def load_job(run: RunDir) -> dict[str, Any] | None:
    """What submit recorded; None when the run was never submitted."""
    found: dict[str, Any] | None = read_json(run.job) if run.job.is_file() else None
    return found


def is_job_alive(run: RunDir) -> bool:
    """Whether the newest job of this run has not ended yet."""
    job = load_job(run)
    if job is None or run.end.is_file():
        return False
    return _is_local_alive(run, int(job["job_id"]))


def cancel_job(run: RunDir) -> bool:
    """Ask the job to save and end; False when it is not alive."""
    if not is_job_alive(run):
        return False
    job = load_job(run)
    assert job is not None
    os.kill(int(job["job_id"]), signal.SIGTERM)
    return True


def _is_local_alive(run: RunDir, pid: int) -> bool:
    # A process id may have been given to somebody else since; submitit's launcher names our folder.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(run.submitit).encode() in words
