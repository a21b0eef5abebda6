"""A local run stays in front: live progress, Ctrl-C saves, the table at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

from slurm_rl.disk import explain_refusal
from slurm_rl.job.attempts import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_NOT_OURS
from slurm_rl.job.silent import OURS
from slurm_rl.report.html import write_report
from slurm_rl.report.progress import follow
from slurm_rl.report.summary import render_summary, write_summary
from slurm_rl.run_dir import RunDir, read_json

_STOP_TEXT = "\nStopping: the run saves and leaves (Ctrl-C again to leave it to itself)."


def follow_to_the_end(run: RunDir, job: Any) -> int:
    """Show progress until the job, which is submitit's, ends; its exit code."""
    try:
        follow(run, lambda: not job.done())
    except KeyboardInterrupt:
        print(_STOP_TEXT, file=sys.stderr, flush=True)
        stop(job)
        _wait(job)
    if _result(job) == EXIT_NOT_OURS:
        # Nothing of the run is ours to sum up; its controller has said whose it is.
        said = job.paths.stdout.read_text(encoding="utf-8", errors="replace").splitlines()
        print(*[line for line in said if line.startswith(OURS)], sep="\n", file=sys.stderr)
        return EXIT_NOT_OURS
    return _finish(run)


def stop(job: Any) -> None:
    """Ask a local job to save and leave: submitit passes SIGTERM on to the controller."""
    import signal

    if job._process is not None and job._process.poll() is None:
        job._process.send_signal(signal.SIGTERM)


def _wait(job: Any) -> None:
    while not job.done():
        time.sleep(0.2)


def _result(job: Any) -> int | None:
    """The controller's exit code; None of one that was killed."""
    from submitit.core.utils import UncompletedJobError

    try:
        return int(job.result())
    except UncompletedJobError:
        return None


def _finish(run: RunDir) -> int:
    silent = f"its controller ended without a word; see {run.submitit}"
    end: dict[str, Any] = read_json(run.end) if run.end.is_file() else {"exit_code": EXIT_FAILED, "cause": silent}
    code = int(end["exit_code"])
    if code == EXIT_INTERRUPTED:
        how = "and saved" if _is_saved(run) else f"with not all of it saved ({end['cause']})"
        print(f"slurm_rl: interrupted {how}. Next: python -m slurm_rl resume {run.path}", file=sys.stderr)
    elif code != EXIT_FINISHED:
        print(f"slurm_rl: {end['cause']}", file=sys.stderr)
        print(f"logs: {run.attempts / 'latest' / 'logs'}", file=sys.stderr)
    try:
        summary = write_summary(run)
        write_report(run)
    except OSError as error:
        refusal = explain_refusal(error, run.path)
        if refusal is None:
            raise
        print(f"slurm_rl: the report: {refusal}, then python -m slurm_rl report {run.path}", file=sys.stderr)
        return code or EXIT_FAILED
    if code == EXIT_FINISHED:
        from rich.console import Console

        Console().print(render_summary(summary))
    return code


def _is_saved(run: RunDir) -> bool:
    """Whether the last attempt said so."""
    ends = [run.attempt(number).end for number in run.attempt_numbers()[-1:]]
    return any(end.is_file() and read_json(end)["outcome"] == "checkpointed" for end in ends)
