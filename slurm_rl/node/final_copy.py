"""The last thing on the head node: what the attempt leaves goes to checkpoint.upload_url. Standard library alone."""

from __future__ import annotations

import os
import signal
import subprocess

from slurm_rl.node.processes import start_child
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import copy_argv
from slurm_rl.run_dir.disk import say
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event

MOST_S = 3600.0
"""A large model to a slow bucket."""
MOST_STOPPED_S = 60.0
"""Asked to leave: the allocation ends soon."""


def copy_out(run: RunDir, plan: JobPlan, attempt: AttemptDir, most_s: float) -> None:
    """Copy logs and export, where the run has a URL for copies; what fails is an event, and no failure of the run."""
    if plan.copies_to is None:
        return
    try:
        child = start_child(copy_argv(plan, attempt.number), os.environ, attempt.log("final-copy"), signal.SIGKILL)
    except OSError as error:
        say(f"{plan.python} could not copy logs and export: {error.strerror}")
        return
    try:
        child.wait(max(most_s, 0.0))
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        # The controller has more time, where it may start another.
        cause = f"not done within {most_s:.0f} s"
        append_event(run, "run/copy_failed", attempt=attempt.number, cause=cause, is_late=True)
