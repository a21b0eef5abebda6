"""Facts of a run from the files of its directory: phase, newest row, results."""

from collections.abc import Iterator
from typing import Any

from slurm_rl.cli.progress import Progress
from slurm_rl.cli.table import format_age
from slurm_rl.run_dir.divergence import find_divergence
from slurm_rl.run_dir.eval_sets import describe_result, read_eval_rows, read_results
from slurm_rl.run_dir.event_text import find_rows
from slurm_rl.run_dir.jsonl import Row, read_first_rows, read_last_rows, read_rows
from slurm_rl.run_dir.run_dir import RunDir

END_BYTES = 1 << 16
"""Bytes read at an end of a long file."""
_HELD_OUT = {"accuracy/sampled": "sampled", "accuracy/greedy": "greedy", "eval/loss": "loss", "eval/accuracy": "pairs"}


def read_newest_row(run: RunDir) -> dict[str, Any]:
    """Return the newest row of metrics.jsonl that is not an evaluation."""
    rows = read_last_rows(run.metrics, END_BYTES)
    return next((row for row in reversed(rows) if row.get("stage") != "eval"), {})


def read_num_steps(run: RunDir) -> int:
    """Return the steps of the whole run with warm-up, as logged at the start of an attempt; 0 before."""
    events = read_first_rows(run.events, END_BYTES)
    start = next((event for event in events if event.get("kind") == "trainer/started"), {})
    return int(start.get("warmup_steps", 0)) + int(start.get("num_steps", 0))


def describe_phase(run: RunDir, now: float) -> str:
    """Return phase and age, such as "loading weights, 2 of 8 rollout engines ready (for 40 s)"; "" once it trains.

    Args:
        now: seconds since the epoch.
    """
    progress, since = Progress(), now
    for event in read_last_rows(run.events, END_BYTES):
        before = progress.stage
        progress.apply_event(event)
        since = event["time"] if progress.stage != before or since == now else since
    for row in read_last_rows(run.metrics, END_BYTES)[-1:]:
        progress.apply_row(row)
    return "" if progress.total else f"{progress.stage} (for {format_age(now - since)})"


def find_cancel(run: RunDir) -> float | None:
    """Return the time of a cancel that the run's newest job has not yet ended by."""
    kinds = ("job/cancel_requested", "job/submitted", "job/ended")
    newest = next((row for row in reversed(read_last_rows(run.events, END_BYTES)) if row.get("kind") in kinds), {})
    return float(newest["time"]) if newest.get("kind") == kinds[0] else None


def is_of_attempt(run: RunDir, row: Row) -> bool:
    """Return whether the newest attempt wrote this row of metrics."""
    events = read_last_rows(run.events, END_BYTES)
    start = next((event["time"] for event in reversed(events) if event.get("kind") == "attempt/started"), 0.0)
    return float(row.get("time/stamp", start)) >= start


def describe_results(run: RunDir) -> Iterator[str]:
    """Yield the newest evaluation, the newest result of each set, and warnings; nothing before an evaluation."""
    rows = [*read_ends(run), *read_eval_rows(run)]
    if newest := next((row for row in reversed(rows) if _HELD_OUT.keys() & row.keys()), None):
        numbers = ", ".join(f"{name} {newest[key]:.3f}" for key, name in _HELD_OUT.items() if key in newest)
        yield f"eval    held out: {numbers} (step {newest['step']})"
    for name, results in read_results(rows).items():
        yield f"set     {name}: {describe_result(results[-1])} (step {results[-1]['step']})"
    num_held_out = find_rows(read_first_rows(run.events, END_BYTES)).get("held_out", 0)
    yield from (f"warning {text}" for text in find_divergence(rows, num_held_out))


def read_ends(run: RunDir) -> list[Row]:
    """Return the first and the last rows of metrics.jsonl; all rows of a short file."""
    if not run.metrics.is_file():
        return []
    if run.metrics.stat().st_size <= 2 * END_BYTES:
        return read_rows(run.metrics)
    return [*read_first_rows(run.metrics, END_BYTES), *read_last_rows(run.metrics, END_BYTES)]
