"""Work behind the trainer's back: the copy of an attempt to checkpoint.upload_url; the report of a job and the news of
its end.

The head's agent copies at its end. It cannot if it was killed, if its node was lost, or if another node's failure made
Slurm end the whole step, which leaves only KillWait. Then the controller makes the copy in a separate process.
"""

import shlex
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.controller.allocation import Allocation, IsStopped
from slurm_rl.launch.hooks import finish_sinks, write_report
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.run_dir.fs_probe import ForkedTask
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event

_TIMEOUT_S = 60.0
MOST_S = 600.0
"""The next attempt waits for it."""
_POLL_S = 0.2
_END_S = 2.0


def write_results(run: RunDir, timeout_s: float = _TIMEOUT_S) -> None:
    """Write summary.json and report.html of a run that has ended; nothing for a job that was requeued.

    A child process does it, so that the controller imports no charts, and so that a failure or a file system that
    hangs is only a warning.
    """
    writer = ForkedTask(lambda: _write(run))
    if not comes_true(lambda: writer.poll() is not None, timeout_s):
        writer.leave()
        log_to_stderr(_explain(run, f"it took longer than {timeout_s:g} s"))


def _write(run: RunDir) -> None:
    if not run.end.is_file():
        return
    try:
        write_report(run)
        # The run may have ended before the evaluation of its checkpoint.
        if run.path.parent.name == run.evals.name and (trained := RunDir(run.path.parents[1])).end.is_file():
            write_report(trained)
    except Exception as error:  # the outcome of the run stays
        cause = f"{type(error).__name__}: {error}"
        append_event(run, "report/failed", cause=cause)
        log_to_stderr(_explain(run, cause))


def tell_end(run: RunDir) -> None:
    """Run logging.on_end, and send the last events, of a run that has ended; nothing for a job that was requeued."""
    if not run.end.is_file():
        return
    # Late: the controller in an existing Ray cluster starts with the standard library.
    import yaml

    from slurm_rl.run_dir.event_text import read_config_text

    config = yaml.safe_load(read_config_text(run)) or {}
    logging = config.get("logging") or {}
    if logging.get("on_end") or (logging.get("otel") or {}).get("endpoint"):
        teller = ForkedTask(lambda: finish_sinks(run, config))
        if not comes_true(lambda: teller.poll() is not None, logging["on_end_timeout_s"] + _TIMEOUT_S):
            teller.leave()
            log_to_stderr("warning: logging.on_end did not end in time")


def _explain(run: RunDir, cause: str) -> str:
    return (
        f"warning: report.html and summary.json are not written ({cause}). "
        f"Next: python -m slurm_rl report {shlex.quote(str(run.path))}"
    )


def needs_copy(events: Iterable[Mapping[str, Any]], attempt: int) -> bool:
    """Return whether no event records a copy of this attempt, or the reason against one.

    >>> events = [{"kind": "attempt/started", "attempt": 1}]
    >>> needs_copy(events, 1), needs_copy([*events, {"kind": "run/copied", "what": "attempt-1-20261123-140000"}], 1)
    (True, False)
    >>> needs_copy([*events, {"kind": "run/copy_failed", "attempt": 1, "cause": "not done in 9 s", "is_late": True}], 1)
    True
    """
    for row in reversed([*events]):
        kind, is_own = row.get("kind"), row.get("attempt") == attempt
        if kind == "attempt/started" and is_own:
            return True  # earlier events belong to an earlier start
        is_copied = kind == "run/copied" and str(row.get("what")).startswith(f"attempt-{attempt}-")
        if is_copied or (kind == "run/copy_failed" and is_own and not row.get("is_late")):
            return False
    return True


def copy_behind(
    run: RunDir, allocation: Allocation, attempt: AttemptDir, is_stopped: IsStopped, most_s: float = MOST_S
) -> None:
    """Make the missing copy; a failure is an event and does not fail the run."""
    if is_stopped() or not needs_copy(read_rows(run.events), attempt.number):
        return
    try:
        copying = allocation.start_copy(attempt)
    except (SlurmRLError, OSError) as error:
        append_event(run, "run/copy_failed", attempt=attempt.number, cause=str(error))
        return
    if copying is None:
        return
    give_up_at = time.monotonic() + most_s
    while copying.poll() is None and not is_stopped() and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
    if copying.poll() is None:
        cause = "stop requested" if is_stopped() else f"not done within {most_s:.0f} s"
        append_event(run, "run/copy_failed", attempt=attempt.number, cause=cause, is_late=True)
        copying.terminate()
        # The copy ignores SIGTERM, which Slurm sends to all processes; a stopping controller does not wait for it.
        if not comes_true(lambda: copying.poll() is not None, _END_S):
            copying.send_signal(signal.SIGKILL)
    elif needs_copy(read_rows(run.events), attempt.number):
        cause = f"ended with status {copying.returncode}; see {attempt.log('final-copy')}"
        append_event(run, "run/copy_failed", attempt=attempt.number, cause=cause)
