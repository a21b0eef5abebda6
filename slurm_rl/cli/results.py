"""`status` of a sweep: its leaderboard."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

from slurm_rl.cli.columns import find_width
from slurm_rl.cli.told import show_plainly, tell
from slurm_rl.cli.words import Words
from slurm_rl.launch.jobs import read_states
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, load_ledger, swept_overrides
from slurm_rl.plugins.report.leaderboard import RankedRun, explain_missing, rank, read_metric, render_standings
from slurm_rl.run_dir.jsonl import read_first_rows, read_last_rows
from slurm_rl.run_dir.run_dir import RunDir

_TAIL_BYTES = _HEAD_BYTES = 1 << 16


def run_leaderboard(told: Words, sweep: SweepDir) -> None:
    """Print the leaderboard of the sweep.

    Raises:
        ConfigError: no run has the metric named by --metric.
    """
    args, ledger = told.flags, load_ledger(sweep)
    metric = args.metric or ledger.metric
    standings = read_standings(sweep, ledger, metric, args.smallest_first)
    is_missing = all(standing.value is None for standing in standings)
    missing = explain_missing([sweep.run(entry.index) for entry in ledger.runs], metric) if is_missing else None
    if missing is not None and args.metric:
        raise missing
    if args.json:
        print(json.dumps([{**asdict(s), "run_dir": str(sweep.path / s.run)} for s in standings], indent=2))
    else:
        counts = Counter(standing.state for standing in standings).most_common()
        counted = ", ".join(f"{number} {word}" for word, number in counts)
        print(show_plainly(f"sweep   {sweep.path}\nruns    {counted}"))
        print_standings(standings, metric)
    if missing is not None:
        tell(f"slurm_rl: {missing}")


def print_standings(standings: list[RankedRun], metric: str) -> None:
    """Print the table at the width of the terminal."""
    print(show_plainly(render_standings(standings, metric, find_width())))


def read_standings(sweep: SweepDir, ledger: Ledger, metric: str, smallest_first: bool | None = None) -> list[RankedRun]:
    """Return every run of the sweep, best first, with one query to Slurm.

    Args:
        smallest_first: whether less is better; as recorded by the sweep if None.
    """
    runs = [sweep.run(entry.index) for entry in ledger.runs]
    rows = zip(ledger.runs, runs, swept_overrides(ledger.runs), read_states(runs), strict=True)
    found = [
        RankedRun(str(entry.index), swept, read_metric(run, metric), state.word, describe_step(run), state.detail)
        for entry, run, swept, state in rows
    ]
    return rank(found, smallest_first=ledger.smallest_first if smallest_first is None else smallest_first)


def describe_step(run: RunDir) -> str:
    """Return the last step and the total, such as 37/100."""
    step, total = last_row(run).get("step"), find_total(run)
    return "-" if step is None and not total else f"{step or 0}/{total}" if total else str(step)


def last_row(run: RunDir) -> dict[str, Any]:
    """Return the newest row of metrics.jsonl that is not an evaluation; reads only the end of the file."""
    rows = read_last_rows(run.metrics, _TAIL_BYTES)
    return next((row for row in reversed(rows) if row.get("stage") != "eval"), {})


def find_total(run: RunDir) -> int:
    """Return the steps of the whole run with warm-up, as logged at the start of an attempt; 0 before."""
    events = read_first_rows(run.events, _HEAD_BYTES)
    start = next((event for event in events if event.get("kind") == "trainer/started"), {})
    return int(start.get("warmup_steps", 0)) + int(start.get("num_steps", 0))
