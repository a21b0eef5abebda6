"""What a run that has no training step yet is doing."""

from __future__ import annotations

from slurm_rl.cli.progress import Progress
from slurm_rl.cli.status_table import format_age
from slurm_rl.run_dir.jsonl import read_last_rows
from slurm_rl.run_dir.run_dir import RunDir

_TAIL_BYTES = 1 << 16


def describe_phase(run: RunDir, now: float) -> str:
    """Return phase and age, such as "loading weights, 2 of 8 rollout engines ready (for 40 s)"; "" once it trains.

    Args:
        now: seconds since the epoch.
    """
    progress, since = Progress(), now
    for event in read_last_rows(run.events, _TAIL_BYTES):
        before = progress.stage
        progress.apply_event(event)
        since = event["time"] if progress.stage != before or since == now else since
    for row in read_last_rows(run.metrics, _TAIL_BYTES)[-1:]:
        progress.apply_row(row)
    return "" if progress.total else f"{progress.stage} (for {format_age(now - since)})"
