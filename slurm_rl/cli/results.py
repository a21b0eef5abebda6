"""`status` of a sweep: its leaderboard."""

from __future__ import annotations

import json
from dataclasses import asdict

from slurm_rl.cli.columns import find_width
from slurm_rl.cli.find import require_sweep
from slurm_rl.cli.told import show_plainly, tell
from slurm_rl.cli.words import Words
from slurm_rl.launch.jobs import read_states
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, load_ledger, swept_overrides
from slurm_rl.plugins.report.leaderboard import RankedRun, explain_missing, rank, read_metric, render_standings


def run_leaderboard(told: Words) -> int:
    args, sweep = told.flags, require_sweep(told.rest)
    ledger = load_ledger(sweep)
    metric = args.metric or ledger.metric
    standings = read_standings(sweep, ledger, metric, args.smallest_first)
    is_missing = all(standing.value is None for standing in standings)
    missing = explain_missing([sweep.run(entry.index) for entry in ledger.runs], metric) if is_missing else None
    if missing is not None and args.metric:
        raise missing
    if args.json:
        print(json.dumps([{**asdict(s), "run_dir": str(sweep.path / s.run)} for s in standings], indent=2))
    else:
        print_standings(standings, metric)
    if missing is not None:
        tell(f"slurm_rl: {missing}")
    return 0


def print_standings(standings: list[RankedRun], metric: str) -> None:
    """The table, as wide as the terminal has room."""
    print(show_plainly(render_standings(standings, metric, find_width())))


def read_standings(sweep: SweepDir, ledger: Ledger, metric: str, smallest_first: bool | None = None) -> list[RankedRun]:
    """Every run of the sweep, best first, by one question to Slurm.

    Args:
        smallest_first: whether less is better; None: the sweep says.
    """
    runs = [sweep.run(entry.index) for entry in ledger.runs]
    rows = zip(ledger.runs, runs, swept_overrides(ledger.runs), read_states(runs), strict=True)
    found = [
        RankedRun(str(entry.index), swept, read_metric(run, metric), state.word) for entry, run, swept, state in rows
    ]
    return rank(found, smallest_first=ledger.smallest_first if smallest_first is None else smallest_first)
