"""The entry of every job that submitit starts, as its pickle names it.

The names of this module and of `run_controller` are a contract: jobs that wait in a queue, and runs that an earlier
version began and that are resumed with their own snapshot of the code, know no other. It is called with the run
directory's path and nothing else, so a requeue that replays the old pickle loses nothing.
"""

from __future__ import annotations

from slurm_rl.launchers.jobs import drive_run


def run_controller(run_dir: str) -> int:
    """Drive the run to its end; the job's exit code."""
    return drive_run(run_dir)
