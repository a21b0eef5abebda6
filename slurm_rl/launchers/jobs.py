"""The job of a run: where it stands, and how it is ended. Slurm's word and the run directory's, as one."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.errors import RunDirError, SlurmRLError
from slurm_rl.job.attempts import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from slurm_rl.job.own_folder import require_own_run
from slurm_rl.launchers.silent import explain_entrypoint, explain_silent_job
from slurm_rl.launchers.slurm import commands
from slurm_rl.launchers.slurm.commands import JobInfo
from slurm_rl.launchers.slurm.states import JobState
from slurm_rl.run_dir import RunDir, append_event, read_json, write_json

if TYPE_CHECKING:
    from slurm_rl.launchers.ray.dashboard import Dashboard

_CANCEL_DEADLINE_S = 10.0
OF_THIS_MACHINE = ("local", "machines")
"""Launchers whose controller is a process here."""


@dataclass(frozen=True)
class RunState:
    """Where a run stands."""

    word: str
    """pending, running, finished, failed, ...: the state alone."""
    detail: str = ""
    """Nodes, reason or cause; "" when there is nothing to say."""
    is_alive: bool = False
    """Its job has not ended: it runs or will."""

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


def load_job(run: RunDir) -> dict[str, Any] | None:
    """What submit recorded; None when the run was never submitted."""
    found: dict[str, Any] | None = read_json(run.job) if run.job.is_file() else None
    return found


def read_states(runs: Sequence[RunDir]) -> list[RunState]:
    """The state of each run, by one question to Slurm for all that have not ended by their own word."""
    ids = [job_id for run in runs if (job_id := open_job_id(run))]
    try:
        known, trouble = commands.query_jobs(ids), ""
    except SlurmRLError as error:
        # The run directory still has something to say, also on a machine without Slurm.
        known, trouble = {}, str(error)
    return [_state(run, known, trouble) for run in runs]


def is_job_alive(run: RunDir) -> bool:
    """Whether the newest job of this run has not ended yet; a queued one is alive.

    Raises:
        SlurmRLError: Slurm does not say.
    """
    job = load_job(run)
    if job is not None and job["launcher"] == "ray":
        found = open_recorded_dashboard(run, job).find_job(job["job_id"])
        return found is not None and found.is_alive
    job_id = open_job_id(run)
    return _state(run, commands.query_jobs([job_id] if job_id else []), "").is_alive


def open_job_id(run: RunDir) -> str | None:
    """The job that Slurm must be asked about; None where the run directory says all."""
    job = load_job(run)
    if job is None or job["launcher"] != "slurm":
        return None
    # An interrupted job may wait to start again: `scontrol requeue` looks like a cancel to the controller.
    is_open = not run.end.is_file() or read_json(run.end)["state"] == "interrupted"
    return str(job["job_id"]) if is_open else None


def cancel_job(run: RunDir) -> bool:
    """Ask the job to save and end; False when it is not alive.

    Raises:
        RunDirError: it is, or was, a process of another machine.
    """
    job = load_job(run)
    if job is None or not is_job_alive(run):
        if job is not None and not run.end.is_file() and (host := _other_host(job)):
            raise RunDirError(
                "a run without Slurm is cancelled on the machine of its controller",
                seen=f"this is {socket.gethostname()}, it was started on {host}",
                action=f"there: python -m slurm_rl cancel {shlex.quote(str(run.path))}",
            )
        return False
    if job["launcher"] == "ray":
        open_recorded_dashboard(run, job).stop(job["job_id"])
        return True
    if job["launcher"] in OF_THIS_MACHINE:
        os.kill(int(job["job_id"]), signal.SIGTERM)
        return True
    found = commands.query_jobs([job["job_id"]]).get(job["job_id"])
    if found and found.state == JobState.RUNNING:
        # To the controller alone: it saves first, which a plain scancel's KillWait may be too short for.
        commands.cancel([job["job_id"]], signal="TERM")
    else:
        commands.cancel([job["job_id"]])
        _record_cancelled(run, job["job_id"])
    return True


def _record_cancelled(run: RunDir, job_id: str) -> None:
    deadline = time.monotonic() + _CANCEL_DEADLINE_S
    while time.monotonic() < deadline:
        found = commands.query_jobs([job_id]).get(job_id)
        if found is None or found.state.is_ended:
            break
        time.sleep(0.2)
    record_cancelled(run, found)


def record_cancelled(run: RunDir, found: JobInfo | None) -> None:
    """Write the end of a job that was cancelled while it waited: no controller is there to do it."""
    # Nodes mean that it had started after all; then its controller has the last word.
    if found is None or (found.state == JobState.CANCELLED and not found.nodelist):
        cause = "cancelled while it waited to start"
        write_json(run.end, {"state": "cancelled", "exit_code": EXIT_INTERRUPTED, "cause": cause, "step": -1})
        append_event(run, "job/ended", state="cancelled", cause=cause)


def _state(run: RunDir, known: Mapping[str, JobInfo], trouble: str) -> RunState:
    job = load_job(run)
    found = known.get(job["job_id"]) if job else None
    if run.end.is_file():
        waits = found is not None and found.state == JobState.PENDING
        end = read_json(run.end)
        return _slurm_state(run, found) if found and waits else RunState(end["state"], end["cause"])
    if job is None:
        return RunState("not submitted")
    if host := _other_host(job):
        return RunState("unknown", f"its controller is a process of {host}; ask there")
    if job["launcher"] in OF_THIS_MACHINE:
        alive = _is_local_alive(run, int(job["job_id"]))
        return RunState("running", is_alive=True) if alive else RunState("dead", _SILENT_END)
    if job["launcher"] == "ray":
        return _ray_state(run, job)
    if trouble:
        return RunState("unknown", trouble)
    return _slurm_state(run, found) if found else RunState("dead", f"Slurm knows job {job['job_id']} no more")


_RAY_WORDS = {"PENDING": "pending", "RUNNING": "running", "SUCCEEDED": "finished", "FAILED": "failed"}
_MOST_MESSAGE = 500


def _ray_state(run: RunDir, job: Mapping[str, Any]) -> RunState:
    where = f"job {job['job_id']} of the Ray cluster at {job['address']}"
    try:
        found = open_recorded_dashboard(run, job).find_job(job["job_id"])
    except SlurmRLError as error:
        return RunState("unknown", str(error))
    if found is None:
        return RunState("dead", f"Ray knows no {where}")
    if found.exit_code is not None and (cause := explain_entrypoint(run, found.message, found.exit_code)):
        _record_failed(run, cause)
        return RunState("failed", cause)
    stopped = found.status == "STOPPED" or found.exit_code == EXIT_INTERRUPTED
    word = "interrupted" if stopped else _RAY_WORDS.get(found.status, "unknown")
    detail = where if word in ("running", "finished") else f"{where}: {found.message[-_MOST_MESSAGE:].strip()}"
    return RunState(word, detail.rstrip(": "), is_alive=found.is_alive)


def open_recorded_dashboard(run: RunDir, job: Mapping[str, Any]) -> Dashboard:
    """The cluster that job.json names, which gets our token.

    Raises:
        RunDirError: another user wrote it, and it may name a machine of his.
    """
    require_own_run(run)
    from slurm_rl.launchers.ray.submit import open_dashboard

    return open_dashboard(job["address"])


_SILENT_END = "its controller ended without a word"


def _slurm_state(run: RunDir, job: JobInfo) -> RunState:
    attempts = len(run.attempt_numbers())
    if job.state == JobState.PENDING:
        parts = [job.reason or "no reason given"]
        if job.start_time:
            parts.append(f"starts about {_clock(job.start_time)}")
        if attempts:
            parts.append(f"{attempts} attempts so far")
        return RunState("pending", ", ".join(parts), is_alive=True)
    if not job.state.is_ended:
        parts = [f"on {job.nodelist}", f"attempt {attempts}" if attempts else "before the first attempt"]
        if job.end_time:
            parts.append(f"until {_clock(job.end_time)} at the latest")
        return RunState(job.state.value, ", ".join(parts), is_alive=True)
    if cause := explain_silent_job(run, job):
        _record_failed(run, cause)
        return RunState("failed", cause)
    exit_code = f", exit code {job.exit_code}" if job.exit_code else ""
    reason = f" ({job.reason}{exit_code})" if job.reason or exit_code else ""
    return RunState("dead", f"Slurm says {job.slurm_state}{reason}; {_SILENT_END}")


def _record_failed(run: RunDir, cause: str) -> None:
    """Write down what only Slurm knew: it forgets a job some minutes after its end (MinJobAge)."""
    with contextlib.suppress(OSError):  # somebody else's run, or a full disk: then it is told and not kept
        write_json(run.end, {"state": "failed", "exit_code": EXIT_BAD_INPUT, "cause": cause, "step": -1})
        append_event(run, "job/ended", state="failed", cause=cause)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _other_host(job: Mapping[str, Any]) -> str | None:
    """Where the controller is a process, when that is not here: its number says nothing to us."""
    host: str | None = job.get("host")
    return None if host == socket.gethostname() else host


def _is_local_alive(run: RunDir, pid: int) -> bool:
    # A process id may have been given to somebody else since; submitit's launcher names our folder.
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(run.submitit).encode() in words
