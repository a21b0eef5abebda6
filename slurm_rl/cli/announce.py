"""Print where a started run is, and follow it if it runs on this machine."""

from __future__ import annotations

import shlex

from slurm_rl.cli.foreground import follow_to_the_end
from slurm_rl.cli.output import note
from slurm_rl.launch.runs.start import Started
from slurm_rl.plan.image_file import describe_image


def announce_and_follow(started: Started) -> int:
    """Print the run's paths and commands. Return 0 at once for a job, or the exit code of a run on this machine."""
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
    return 0 if submitted.process is None else follow_to_the_end(directory, submitted.process)
