"""Results of a run as lines of `status`: held-out accuracy, evaluation sets and warnings."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_rl.run_dir.divergence import find_divergence
from slurm_rl.run_dir.eval_sets import describe_result, read_results
from slurm_rl.run_dir.event_text import find_rows
from slurm_rl.run_dir.jsonl import Row, read_first_rows, read_last_rows, read_rows
from slurm_rl.run_dir.run_dir import RunDir

_END_BYTES = 1 << 16
"""Bytes read at each end of a long metrics.jsonl."""
_HELD_OUT = {"accuracy/sampled": "sampled", "accuracy/greedy": "greedy", "eval/loss": "loss", "eval/accuracy": "pairs"}


def describe_results(run: RunDir) -> Iterator[str]:
    """Yield the newest evaluation, the newest result of each set, and warnings; nothing before an evaluation."""
    rows = _read_ends(run)
    if newest := next((row for row in reversed(rows) if _HELD_OUT.keys() & row.keys()), None):
        told = ", ".join(f"{name} {newest[key]:.3f}" for key, name in _HELD_OUT.items() if key in newest)
        yield f"eval    held out: {told} (step {newest['step']})"
    for name, results in read_results(rows).items():
        yield f"set     {name}: {describe_result(results[-1])} (step {results[-1]['step']})"
    num_held_out = find_rows(read_first_rows(run.events, _END_BYTES)).get("held_out", 0)
    yield from (f"warning {text}" for text in find_divergence(rows, num_held_out))


def _read_ends(run: RunDir) -> list[Row]:
    """Return the first and the last rows of metrics.jsonl; all rows of a short file."""
    if not run.metrics.is_file():
        return []
    if run.metrics.stat().st_size <= 2 * _END_BYTES:
        return read_rows(run.metrics)
    return [*read_first_rows(run.metrics, _END_BYTES), *read_last_rows(run.metrics, _END_BYTES)]
