"""Measure the saves of a run from its events and step times, and write them to learned.json."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate

from slurm_rl.plugins.goodput.allocations import find_allocations, number
from slurm_rl.run_dir.io_errors import describe_disk, log_to_stderr
from slurm_rl.run_dir.jsonl import Row, read_last_rows, read_rows
from slurm_rl.run_dir.run_dir import RunDir, write_json
from slurm_rl.run_dir.save_times import Measured, read_learned

_ATTEMPTS, _TAIL_BYTES = 3, 1 << 19
"""Number of newest steps that are read; the controller measures every minute."""
_LOSSES = ("lost", "failed")
_DAY_S = 86400.0


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
        log_to_stderr(f"{run.learned} is as before ({error}; {describe_disk(run.path)})")
        return known
    return measured


def measure(events: Sequence[Row], steps: Mapping[int, Sequence[Row]]) -> Measured:
    """Return the measurements over all attempts of a run."""
    saves = [number(row, "seconds") for row in events if row.get("kind") == "checkpoint/saved" and "seconds" in row]
    units = [number(row, "seconds") for rows in steps.values() for row in rows if row.get("stage") != "save"]
    ordered = sorted(events, key=lambda event: number(event, "time"))
    nodes_held = [(number(one.first, "nodes"), one.end - one.start) for one in find_allocations(ordered, steps)]
    return Measured(
        num_saves=len(saves),
        save_s=round(percentile(saves, 0.95), 3),
        rest_s=round(percentile_of_rest(units, 0.95), 3),
        ends=sum(row.get("kind") == "attempt/ended" and row.get("outcome") in _LOSSES for row in events),
        node_days=round(sum(nodes * seconds for nodes, seconds in nodes_held) / _DAY_S, 6),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; 0 without values.

    >>> percentile([3.0, 1.0, 2.0], 0.95), percentile([], 0.5)
    (3.0, 0.0)
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0


def percentile_of_rest(durations: Sequence[float], share: float) -> float:
    """Return the percentile of the remaining duration at a random moment, which falls into long ones more often.

    >>> percentile_of_rest([10.0], 0.95), round(percentile_of_rest([1.0] * 10 + [100.0], 0.95), 1)
    (9.5, 94.5)
    """
    # The rest r solves sum(max(0, d - r)) = left; the sum over the n longest is at most that, with equality for one n.
    left = (1.0 - share) * sum(durations)
    sums = accumulate(sorted(durations, reverse=True))
    return round(max([0.0, *((total - left) / count for count, total in enumerate(sums, 1))]), 6)
