"""The run that another one comes after, as its own directory tells of it."""

from __future__ import annotations

import shlex

from slurm_rl.errors import RunDirError
from slurm_rl.launch.controller.record import RunState, read_end_state
from slurm_rl.run_dir.run_dir import RunDir


def has_finished(run: RunDir) -> bool:
    end = read_end_state(run)
    return end is not None and end.word == "finished"


def require_finished(run: RunDir) -> None:
    """Refuse to start what comes after a run that has not finished.

    Raises:
        RunDirError: says how that run is, and what to resume first.
    """
    if not has_finished(run):
        raise not_finished(run, read_end_state(run))


def not_finished(run: RunDir, state: RunState | None) -> RunDirError:
    """The error for a run that has ended otherwise, or not yet."""
    return RunDirError(
        "the run of job.depends_on must have finished before this one starts",
        seen=f"{run.path} is {state}" if state else f"{run.path} has not ended",
        action=f"python -m slurm_rl resume {shlex.quote(str(run.path))}, and when it has finished this one",
    )
