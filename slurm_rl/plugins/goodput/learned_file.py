"""learned.json: measured times of saves, for the trainer, for `status` and for later attempts."""

from __future__ import annotations

from dataclasses import asdict

from slurm_rl.errors import RunDirError
from slurm_rl.plugins.goodput.learned import Measured, measure
from slurm_rl.run_dir.disk import describe_disk, say
from slurm_rl.run_dir.jsonl import read_last_rows, read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

_ATTEMPTS, _TAIL_BYTES = 3, 1 << 19
"""Number of newest steps that are read; the controller measures every minute."""


def learn(run: RunDir) -> Measured:
    """Measure again and write changes; ignore a disk that refuses the write."""
    known = read_learned(run)
    try:
        newest = run.attempt_numbers()[-_ATTEMPTS:]
        steps = {number: read_last_rows(run.attempt(number).steps, _TAIL_BYTES) for number in newest}
        measured = measure(read_rows(run.events), steps)
        if measured.num_saves and measured != known:
            write_json(run.learned, asdict(measured))
    except OSError as error:
        say(f"{run.learned} is as before ({error}; {describe_disk(run.path)})")
        return known
    return measured


def read_learned(run: RunDir) -> Measured:
    """Return the measured times; empty in a new run, or if another version wrote the file."""
    try:
        return Measured(**read_json(run.learned))
    except (OSError, RunDirError, TypeError):
        return Measured()


def lead_in_force(run: RunDir, planned_s: int, *, learns: bool) -> int:
    """Return the seconds before a limit at which the run is stopped.

    Args:
        planned_s: lead of the plan, at which Slurm sends its own signal; a lower bound.
        learns: job.checkpoint_lead_s is auto.
    """
    return max(planned_s, read_learned(run).lead_s or 0) if learns else planned_s
