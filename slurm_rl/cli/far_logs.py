"""The log of a run on a Ray cluster whose files this machine does not see: Ray has what its driver printed."""

from __future__ import annotations

import sys
import time

from slurm_rl.cli.terminal import show_plainly
from slurm_rl.errors import ConfigError
from slurm_rl.launchers.jobs import load_job, open_recorded_dashboard
from slurm_rl.run_dir import RunDir

# Ray hands out the whole log each time.
_ASK_EVERY_S = 3.0


def is_far(run: RunDir) -> bool:
    """Whether only the Ray cluster has the logs."""
    job = load_job(run)
    return job is not None and job["launcher"] == "ray" and not run.attempt_numbers()


def print_far_log(run: RunDir, who: str, *, follow: bool) -> int:
    """Print it as it is, or as it grows until the job ends.

    Raises:
        ConfigError: another log was asked for.
        SlurmRLError: the cluster does not answer.
    """
    if who != "driver":
        raise ConfigError("--who must be driver, since the other logs lie on the Ray cluster", seen=who)
    job = load_job(run)
    assert job is not None
    dashboard, shown = open_recorded_dashboard(run, job), 0
    while True:
        # The state first: what is printed until then is in the log that is read after.
        found = dashboard.find_job(job["job_id"])
        text = dashboard.read_logs(job["job_id"])
        sys.stdout.write(show_plainly(text[shown:]))
        sys.stdout.flush()
        shown = len(text)
        if not follow or found is None or not found.is_alive:
            return 0
        time.sleep(_ASK_EVERY_S)
