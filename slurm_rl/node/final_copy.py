"""Copy the artifacts of an attempt to checkpoint.upload_url, as the last step on the head node. Standard library
only."""

from __future__ import annotations

import logging
import os
import signal
import subprocess

from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import copy_argv
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event

_log = logging.getLogger(__name__)
MOST_S = 3600.0
"""Time for a large model and a slow bucket."""
MOST_STOPPED_S = 60.0
"""Time after a stop, when the allocation ends soon."""


def copy_out(run: RunDir, plan: JobPlan, attempt: AttemptDir, most_s: float) -> None:
    """Copy logs and export, if the run has a URL for copies. A failure is logged and does not fail the run."""
    if plan.copies_to is None:
        return
    try:
        child = start_child(copy_argv(plan, attempt.number), os.environ, attempt.log("final-copy"), signal.SIGKILL)
    except OSError as error:
        _log.error("%s could not copy logs and export: %s", plan.python, error.strerror)
        return
    try:
        child.wait(max(most_s, 0.0))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        # The controller may have time for another copy.
        cause = f"not done within {most_s:.0f} s"
        append_event(run, "run/copy_failed", attempt=attempt.number, cause=cause, is_late=True)
