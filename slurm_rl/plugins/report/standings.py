"""The leaderboard of a sweep."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from slurm_rl.cli.output import note, to_printable
from slurm_rl.cli.run_facts import read_newest_row, read_num_steps
from slurm_rl.cli.table import find_width
from slurm_rl.launch.jobs import read_states
from slurm_rl.launch.sweep.ledger import SweepDir, load_ledger, swept_overrides
from slurm_rl.plugins.report.leaderboard import RankedRun, explain_missing, rank, read_metric, render_standings
from slurm_rl.run_dir.run_dir import RunDir


def print_leaderboard(
    sweep: SweepDir, metric: str | None = None, smallest_first: bool | None = None, *, as_json: bool = False
) -> None:
    """Print the runs of a sweep, best first.

    Args:
        sweep: its directory.
        metric: None for the metric of the sweep.
        smallest_first: whether less is better; None for the order of the sweep.
        as_json: print JSON instead of a table.

    Raises:
        ConfigError: no run has the metric.
    """
    ledger = load_ledger(sweep)
    key = metric or ledger.metric
    standings = read_standings(sweep, key, smallest_first)
    is_missing = all(standing.value is None for standing in standings)
    missing = explain_missing([sweep.run(entry.index) for entry in ledger.runs], key) if is_missing else None
    if missing is not None and metric:
        raise missing
    if as_json:
        print(json.dumps([{**asdict(s), "run_dir": str(sweep.path / s.run)} for s in standings], indent=2))
    else:
        counts = Counter(standing.state for standing in standings).most_common()
        head = f"sweep   {sweep.path}\nruns    {', '.join(f'{number} {word}' for word, number in counts)}\n"
        print(to_printable(head + render_standings(standings, key, find_width())))
    if missing is not None:
        note(f"slurm_rl: {missing}")


def read_standings(sweep: SweepDir, metric: str, smallest_first: bool | None = None) -> list[RankedRun]:
    """Return every run of the sweep, best first, with one query to Slurm."""
    ledger = load_ledger(sweep)
    runs = [sweep.run(entry.index) for entry in ledger.runs]
    rows = zip(ledger.runs, runs, swept_overrides(ledger.runs), read_states(runs), strict=True)
    found = [
        RankedRun(str(entry.index), swept, read_metric(run, metric), state.word, _describe_step(run), state.detail)
        for entry, run, swept, state in rows
    ]
    return rank(found, smallest_first=ledger.smallest_first if smallest_first is None else smallest_first)


def _describe_step(run: RunDir) -> str:
    """Return the last step and the total, such as 37/100."""
    step, total = read_newest_row(run).get("step"), read_num_steps(run)
    return "-" if step is None and not total else f"{step or 0}/{total}" if total else str(step)
