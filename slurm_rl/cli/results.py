"""`results`: the runs of a sweep, best first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from slurm_rl.cli.common import DEFAULT_ROOT
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.report.leaderboard import Standing, check_metric, rank, read_metric, render_standings
from slurm_rl.slurm.jobs import read_states
from slurm_rl.slurm.ledger import Ledger, SweepDir, load_ledger, swept_overrides


def run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm_rl results")
    parser.add_argument("--metric", help="key of metrics.jsonl, or dotted path in the summary; the sweep's by default")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--min", dest="smallest_first", action="store_true", default=None, help="less is better")
    order.add_argument("--max", dest="smallest_first", action="store_false", default=None, help="more is better")
    parser.add_argument("--json", action="store_true", help="as a list of objects")
    parser.add_argument("sweep", nargs="*")
    args = parser.parse_args(words)
    sweep = find_sweep(args.sweep)
    ledger = load_ledger(sweep)
    metric = args.metric or ledger.metric
    smallest_first = ledger.smallest_first if args.smallest_first is None else args.smallest_first
    standings = rank(read_standings(sweep, ledger, metric), smallest_first=smallest_first)
    if all(standing.value is None for standing in standings):
        check_metric([sweep.run(entry.index) for entry in ledger.runs], metric)
    if args.json:
        print(json.dumps([{**asdict(s), "run_dir": str(sweep.path / s.run)} for s in standings], indent=2))
    else:
        print(render_standings(standings, metric))
    return 0


def find_sweep(words: Sequence[str]) -> SweepDir:
    """The sweep named on the command line, or the newest under ./runs.

    Raises:
        ConfigError, RunDirError: there is no such sweep.
    """
    if len(words) > 1:
        raise ConfigError("name one sweep directory", seen=" ".join(words))
    if words:
        return SweepDir(words[0])
    found = sorted(Path(DEFAULT_ROOT).glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RunDirError(
            f"name a sweep directory, or have one under ./{DEFAULT_ROOT}",
            action="start one: python -m slurm_rl -m optim.lr=1e-4,6e-4",
        )
    return SweepDir(found[-1].parent)


def read_standings(sweep: SweepDir, ledger: Ledger, metric: str) -> list[Standing]:
    """Every run of the sweep, by one question to Slurm."""
    runs = [sweep.run(entry.index) for entry in ledger.runs]
    rows = zip(ledger.runs, runs, swept_overrides(ledger.runs), read_states(runs), strict=True)
    return [
        Standing(str(entry.index), swept, read_metric(run, metric), state.word) for entry, run, swept, state in rows
    ]
