"""What a run directory says of its job: which it is, its state, how it ended."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.attempts import EXIT_BAD_INPUT
from slurm_rl.run_dir.run_dir import RunDir, append_event, read_json, write_json


@dataclass(frozen=True)
class Job:
    """The newest job of a run, as submit recorded it."""

    run: RunDir
    launcher: str
    job_id: str
    host: str | None = None
    """Where the controller is a process, when it is one of a machine without a queue."""
    address: str | None = None
    """Of a Ray cluster of others: its dashboard."""


@dataclass(frozen=True)
class RunState:
    """The state of a run."""

    word: str
    """pending, running, finished, failed, ...: the state alone."""
    detail: str = ""
    """Nodes, reason or cause; "" when there is nothing to say."""
    is_alive: bool = False
    """Its job has not ended: it runs or will."""
    error: SlurmRLError | None = None
    """Why nobody knows the state."""

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


SILENT_END = "its controller ended without a word"
ROW_MARK = "slurm_rl row "
"""Begins a line of a job's log that is a row of metrics.jsonl, for a machine that does not see that file."""


def load_job(run: RunDir) -> Job | None:
    """None when the run was never submitted."""
    return Job(run, **read_json(run.job)) if run.job.is_file() else None


def record_job(run: RunDir, launcher: str, job_id: str, **where: str) -> None:
    """Write down which job the run now is.

    Args:
        where: the host of a process, the address of a Ray cluster.
    """
    write_json(run.job, {"launcher": launcher, "job_id": job_id, **where})
    append_event(run, "job/submitted", job_id=job_id, launcher=launcher)


def record_end(run: RunDir, state: str, exit_code: int, cause: str) -> None:
    """Write the end of a job of which no controller did."""
    write_json(run.end, {"state": state, "exit_code": exit_code, "cause": cause, "step": -1})
    append_event(run, "job/ended", state=state, cause=cause)


def record_failed(run: RunDir, cause: str) -> RunState:
    """Write down what only the scheduler knew, which forgets its jobs; told where it cannot be written, too."""
    with contextlib.suppress(OSError):  # somebody else's run, or a full disk
        record_end(run, "failed", EXIT_BAD_INPUT, cause)
    return RunState("failed", cause)


def read_end_state(run: RunDir) -> RunState | None:
    """How the run ended by its own word; None while it has not."""
    if not run.end.is_file():
        return None
    end = read_json(run.end)
    return RunState(end["state"], end["cause"])


def read_rows_of_log(log: str) -> list[dict[str, Any]]:
    """The rows of metrics in a job's log."""
    return [json.loads(line) for line in re.findall(rf"^{ROW_MARK}(\{{.*\}})$", log, re.MULTILINE)]


def read_last_row(log: str) -> dict[str, Any]:
    """The newest of them that is not an evaluation; empty when there is none."""
    return next((row for row in reversed(read_rows_of_log(log)) if row["stage"] != "eval"), {})
