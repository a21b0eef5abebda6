"""summary.json and report.html at the end of a job."""

from __future__ import annotations

import shlex

from slurm_rl.launch.hooks import write_report
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.run_dir.fs_probe import ForkedTask
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.run_dir import RunDir, append_event

_TIMEOUT_S = 60.0


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
    except Exception as error:  # whatever is wrong with the report, the run ended as end.json says
        cause = f"{type(error).__name__}: {error}"
        append_event(run, "report/failed", cause=cause)
        log_to_stderr(_explain(run, cause))


def _explain(run: RunDir, cause: str) -> str:
    return (
        f"warning: report.html and summary.json are not written ({cause}). "
        f"Next: python -m slurm_rl report {shlex.quote(str(run.path))}"
    )
