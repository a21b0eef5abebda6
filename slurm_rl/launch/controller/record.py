"""Read and write the records of a job in the run directory: its id, its state, its end."""

import contextlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.errors import RunDirError, SlurmRLError
from slurm_rl.launch.controller.attempts import EXIT_BAD_INPUT
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json, write_json


@dataclass(frozen=True)
class Job:
    """The newest job of a run, as submit recorded it."""

    run: RunDir
    launcher: str
    job_id: str
    host: str | None = None
    """Host of the controller process, on a machine without a queue."""
    address: str | None = None
    """Address of the dashboard of an existing Ray cluster."""
    earlier: Sequence[str] = ()
    """Jobs whose attempts count for this one, which follows them; see launch/slurm/successor.py."""

    @property
    def has_queue(self) -> bool:
        """Return whether the launcher has a queue, in which an ended job may wait to start again."""
        return LAUNCHERS[self.launcher].is_queue


@dataclass(frozen=True)
class RunState:
    """The state of a run."""

    word: str
    """State as one word: pending, running, finished, failed, ..."""
    detail: str = ""
    """Nodes, reason or cause; may be empty."""
    is_alive: bool = False
    """True while the job is queued or running."""
    error: SlurmRLError | None = None
    """Reason for an unknown state."""

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


SILENT_END = "its controller ended without a message"
ROW_MARK = "slurm_rl row "
"""Prefix of the rows of metrics.jsonl in the log of a job, for machines that cannot read the file."""


def load_job(run: RunDir) -> Job | None:
    """Return the newest job of the run, or None if the run was never submitted."""
    return Job(run, **read_json(run.job)) if run.job.is_file() else None


def record_job(run: RunDir, launcher: str, job_id: str, **where: str) -> None:
    """Record the newest job of the run, with the host of its process or the address of its Ray cluster."""
    write_json(run.job, {"launcher": launcher, "job_id": job_id, **where})
    append_event(run, "job/submitted", job_id=job_id, launcher=launcher)


def record_end(run: RunDir, state: str, exit_code: int, cause: str) -> None:
    """Record the end of a job that its controller did not record."""
    write_json(run.end, {"state": state, "exit_code": exit_code, "cause": cause, "step": -1})
    append_event(run, "job/ended", state=state, cause=cause)


def record_failed(run: RunDir, cause: str) -> RunState:
    """Record a failure that only the scheduler reported, as it deletes old jobs. Return the state in any case."""
    with contextlib.suppress(OSError):  # a run of another user, or a full disk
        record_end(run, "failed", EXIT_BAD_INPUT, cause)
    return RunState("failed", cause)


def read_end_state(run: RunDir) -> RunState | None:
    """Return the recorded end of the run, or None."""
    if not run.end.is_file():
        return None
    end = read_json(run.end)
    return RunState(end["state"], end["cause"])


def read_rows_of_log(log: str) -> list[dict[str, Any]]:
    """Return the rows of metrics in the log of a job."""
    return [json.loads(line) for line in re.findall(rf"^{ROW_MARK}(\{{.*\}})$", log, re.MULTILINE)]


def read_last_row(log: str) -> dict[str, Any]:
    """Return the newest training row of the log; empty if there is none."""
    return next((row for row in reversed(read_rows_of_log(log)) if row["stage"] != "eval"), {})


def has_finished(run: RunDir) -> bool:
    end = read_end_state(run)
    return end is not None and end.word == "finished"


def require_finished(run: RunDir) -> None:
    """Raise RunDirError, with the run's state and the command that resumes it, unless the run has finished."""
    if not has_finished(run):
        raise not_finished(run, read_end_state(run))


def not_finished(run: RunDir, state: RunState | None) -> RunDirError:
    """Return the error for a run that has ended otherwise, or not yet."""
    return RunDirError(
        "the run of job.depends_on must have finished before this one starts",
        seen=f"{run.path} is {state}" if state else f"{run.path} has not ended",
        action=f"python -m slurm_rl resume {shlex.quote(str(run.path))}, and when it has finished this one",
    )
