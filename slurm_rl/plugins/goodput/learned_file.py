"""learned.json: what the controller has learned, for the trainer, for `status`, and for later attempts."""

from __future__ import annotations

from dataclasses import asdict

from slurm_rl.errors import RunDirError
from slurm_rl.plugins.goodput.learned import Measured, measure
from slurm_rl.run_dir.disk import describe_disk, say
from slurm_rl.run_dir.jsonl import read_last_rows, read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

_ATTEMPTS, _TAIL_BYTES = 3, 1 << 19
"""Of steps the newest say enough, and a controller looks each minute."""


def learn(run: RunDir) -> Measured:
    """Measure anew, and write it down when it has changed; a disk that refuses costs what is new alone."""
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
    """What was learned so far; nothing in a new run, or where another version wrote it."""
    try:
        return Measured(**read_json(run.learned))
    except (OSError, RunDirError, TypeError):
        return Measured()


def lead_in_force(run: RunDir, planned_s: int, *, learns: bool) -> int:
    """Seconds before a limit at which the run is stopped.

    Args:
        planned_s: what the plan says, which is also when Slurm signals by itself: less is never waited for.
        learns: job.checkpoint_lead_s is auto.
    """
    return max(planned_s, read_learned(run).lead_s or 0) if learns else planned_s
