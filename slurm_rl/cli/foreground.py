"""A started run: where it is. A local one stays in front: progress, Ctrl-C saves, the table at the end."""

import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from slurm_rl.cli.output import catch_errors, note
from slurm_rl.cli.progress import follow
from slurm_rl.config.user_files.load import load_function
from slurm_rl.launch.controller.agents import OURS
from slurm_rl.launch.controller.attempts import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_NOT_OURS
from slurm_rl.launch.controller.record import SILENT_END
from slurm_rl.launch.hooks import write_report
from slurm_rl.launch.runs.start import Started
from slurm_rl.node.processes import die_with_parent
from slurm_rl.plan.image_file import describe_image
from slurm_rl.run_dir.fs_probe import ANSWER_S, ForkedTask, SubprocessProbe
from slurm_rl.run_dir.io_errors import explain_io_error
from slurm_rl.run_dir.run_dir import RunDir, read_json

PRINT_SUMMARY = "slurm_rl.plugins.report.summary:print_summary"
_STOP_TEXT = "\nStopping: the run saves and leaves (Ctrl-C again to detach; it continues to save)."
_LEAVE_TEXT = (
    "slurm_rl: this command got SIGTERM and ends; the run continues. Next: python -m slurm_rl logs -f {path}; "
    "to end it: python -m slurm_rl cancel {path}"
)
_EXIT_SIGTERM = 128 + signal.SIGTERM
_LEAVING = (signal.SIGHUP, signal.SIGTERM)
_POLL_S = 0.05
_CLOSE_DISPLAY_S = 1.0


def announce_and_follow(started: Started, *, as_json: bool = False) -> int:
    """Print the run's paths and commands. Return 0 at once for a job, or the exit code of a run on this machine.

    Args:
        as_json: print JSON to stdout: directory and job of a job, or the summary of a run on this machine.
    """
    directory, plan, submitted = started
    path = shlex.quote(str(directory.path))
    lines = [
        f"run     {directory.path}",
        f"job     {submitted.job_id}",
        f"log     {directory.attempts / 'latest' / 'logs'}",
        f"follow  python -m slurm_rl logs -f {path}",
        f"status  python -m slurm_rl status {path}",
        f"cancel  python -m slurm_rl cancel {path}",
        describe_image(plan),
    ]
    note("\n".join(filter(None, lines)))
    if submitted.process is not None:
        return follow_to_the_end(directory, submitted.process, as_json=as_json)
    if as_json:
        print(json.dumps({"run_dir": str(directory.path), "job_id": submitted.job_id, "launcher": plan.launcher}))
    return 0


def follow_to_the_end(run: RunDir, job: Any, *, as_json: bool = False) -> int:
    """Show progress until submitit's job ends; returns its exit code.

    A child process reads the run directory, which may hang; this process only handles Ctrl-C and polls the job.
    """
    ours, theirs = socket.socketpair()
    # A signal that arrives before its handler waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _LEAVING)
    display = ForkedTask(lambda: catch_errors(lambda: _display(run, job, ours, theirs, as_json=as_json)))
    theirs.close()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # with nohup the user wants the run to continue
        signal.signal(signal.SIGHUP, stop_like_ctrl_c)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # the head of `join` stops its run instead
        signal.signal(signal.SIGTERM, _leave)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEAVING)
        return _wait(run, job, display, ours)
    except KeyboardInterrupt:
        _close_display(ours)
        stop(job)
        with contextlib.suppress(OSError):  # the terminal is closed
            note(_STOP_TEXT)
        return _wait(run, job, display, ours)
    except _Left:
        _close_display(ours)
        path = shlex.quote(str(run.path))
        with contextlib.suppress(OSError):  # the terminal is closed
            note(_LEAVE_TEXT.format(path=path))
        raise SystemExit(_EXIT_SIGTERM) from None
    finally:
        display.leave()


class _Left(BaseException):
    """SIGTERM: this command ends, the run continues."""


def _leave(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_IGN)
    raise _Left


def stop_like_ctrl_c(signum: int, frame: FrameType | None) -> None:
    """A handler of SIGTERM and SIGHUP."""
    # Only once: the provider may repeat the signal while the run saves.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def stop(job: Any) -> None:
    """Ask a local job to save and leave: submitit passes SIGTERM on to the controller."""
    if job._process is not None and job._process.poll() is None:
        job._process.send_signal(signal.SIGTERM)


def _wait(run: RunDir, job: Any, display: ForkedTask, line: socket.socket) -> int:
    """Wait until the display has shown the end of the job, or the run directory hangs."""
    watch = SubprocessProbe(run.path, ANSWER_S)
    try:
        while (code := display.poll()) is None:
            if job.done():
                line.close()
                if watch.hangs():
                    note(_explain_silence(run))
                    display.leave()
                    watch.close()
                    # submitit's Job looks for its files when it is thrown away.
                    os._exit(EXIT_INTERRUPTED)
            time.sleep(_POLL_S)
        return code if code >= 0 else EXIT_FAILED
    finally:
        watch.close()


def _explain_silence(run: RunDir) -> str:
    path = shlex.quote(str(run.path))
    return (
        f"slurm_rl: the run's processes have ended, and {run.path} has not responded for {ANSWER_S:g} s, so its "
        "last checkpoint is unknown."
        f" Next, when it answers: python -m slurm_rl status {path}; "
        f"python -m slurm_rl resume {path}"
    )


# ---- the child process ---------------------------------------------------------------------------


def _close_display(line: socket.socket) -> None:
    """Tell the child to stop writing to the terminal."""
    with contextlib.suppress(OSError):
        line.send(b".")
        line.settimeout(_CLOSE_DISPLAY_S)
        line.recv(1)


def _display(run: RunDir, job: Any, theirs: socket.socket, line: socket.socket, *, as_json: bool) -> int:
    """Show the run until a message or the end of `line`, then its outcome."""
    die_with_parent(signal.SIGKILL, os.getppid())
    theirs.close()
    line.setblocking(False)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        follow(run, lambda: not _hears(line))
    with contextlib.suppress(OSError):
        line.setblocking(True)
        line.send(b".")
        while line.recv(1):
            pass
    lines: list[str] = []
    with contextlib.suppress(OSError):  # the folder may be lost
        lines = job.paths.stdout.read_text(encoding="utf-8", errors="replace").splitlines()
    if _result(job) == EXIT_NOT_OURS:
        # No summary of a run that is not ours; its controller has named the owner.
        note("\n".join(line for line in lines if line.startswith(OURS)))
        return EXIT_NOT_OURS
    return _finish(run, lines, as_json=as_json)


def _hears(line: socket.socket) -> bool:
    try:
        line.recv(1)
    except BlockingIOError:
        return False
    return True


def _result(job: Any) -> int | None:
    """Return the exit code of the controller; None if it was killed."""
    from submitit.core.utils import UncompletedJobError

    try:
        return int(job.result())
    except UncompletedJobError:
        return None


def _finish(run: RunDir, lines: Sequence[str], *, as_json: bool = False) -> int:
    silent = "\n  ".join([f"{SILENT_END}; its last output in {run.submitit}:", *lines[-5:]])
    end: dict[str, Any] = read_json(run.end) if run.end.is_file() else {"exit_code": EXIT_FAILED, "cause": silent}
    code = int(end["exit_code"])
    if code == EXIT_INTERRUPTED:
        how = "and saved" if _is_saved(run) else f"with not all of it saved ({end['cause']})"
        note(f"slurm_rl: interrupted {how}. Next: python -m slurm_rl resume {run.path}")
    elif code != EXIT_FINISHED:
        note(f"slurm_rl: {end['cause']}\nlogs: {run.attempts / 'latest' / 'logs'}")
    try:
        summary = _read_or_write_summary(run)
    except OSError as error:
        refusal = explain_io_error(error, run.path)
        if refusal is None:
            raise
        note(f"slurm_rl: the report: {refusal}, then python -m slurm_rl report {run.path}")
        return code or EXIT_FAILED
    if as_json:
        print(json.dumps(summary, indent=2))
    elif code == EXIT_FINISHED:
        load_function(PRINT_SUMMARY)(summary)
    return code


def _read_or_write_summary(run: RunDir) -> dict[str, Any]:
    """Return the summary that the controller wrote; write summary and report if it could not."""
    files = (run.end, run.summary, run.report)
    if not all(file.is_file() for file in files) or run.end.stat().st_mtime > run.report.stat().st_mtime:
        write_report(run)
    summary: dict[str, Any] = read_json(run.summary)
    return summary


def _is_saved(run: RunDir) -> bool:
    """Return whether the last attempt reported a checkpoint."""
    ends = [run.attempt(number).end for number in run.attempt_numbers()[-1:]]
    return any(end.is_file() and read_json(end)["outcome"] == "checkpointed" for end in ends)
