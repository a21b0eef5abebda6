"""The leaderboard of a sweep: its runs, ranked by one metric."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slurm_rl.cli.output import note, to_printable
from slurm_rl.cli.run_facts import read_newest_row, read_num_steps
from slurm_rl.cli.table import Shrink, find_width, fit, join_row
from slurm_rl.errors import ConfigError, find_near
from slurm_rl.launch.jobs import read_states
from slurm_rl.launch.sweep.ledger import SweepDir, load_ledger, swept_overrides
from slurm_rl.plugins.report.summary import summarize_run
from slurm_rl.run_dir.eval_sets import read_metrics
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir

_USUAL = ("eval/loss", "accuracy/sampled", "reward/mean", "policy/loss")
_LEGEND = 44
"""Characters of a run's name in a legend."""
_LEAST = 6
"""Minimum width of a swept value."""
_NUM_FIXED = 5
"""Columns before those of the swept keys."""


@dataclass(frozen=True)
class RankedRun:
    """One run in the table."""

    run: str
    """Name of its directory."""
    overrides: Mapping[str, str]
    """Swept values by key."""
    value: float | None
    """None if the run has no such number yet."""
    state: str
    step: str = "-"
    """Steps done, and of how many."""
    why: str = ""
    """Node, reason of a wait, or cause of a failure."""

    @property
    def label(self) -> str:
        """Number and swept values for a legend.

        >>> RankedRun("3", {"optim.lr": "1e-4", "seed": "1"}, None, "").label
        '3: lr=1e-4 seed=1'
        """
        values = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.overrides.items())
        text = f"{self.run}: {values}" if values else f"run {self.run}"
        return text if len(text) <= _LEGEND else f"{text[: _LEGEND - 1]}…"


def read_metric(run: RunDir, metric: str) -> float | None:
    """Return the newest value of a metric.

    Args:
        metric: a key of metrics.jsonl, with a slash (`reward/mean`), or a dotted path in the summary
            (`accuracy.after.sampled`).
    """
    rows = read_metrics(run)
    if "/" in metric:
        return next((_number(row[metric]) for row in reversed(rows) if metric in row), None)
    # summary.json is written at the end of a run only.
    return _number(_flatten(summarize_run(run)).get(metric)) if rows else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def rank(standings: Sequence[RankedRun], *, smallest_first: bool) -> list[RankedRun]:
    """Return the runs, best first; runs without a value last, in their order.

    >>> runs = [RankedRun("0", {}, None, ""), RankedRun("1", {}, 0.5, ""), RankedRun("2", {}, 0.7, "")]
    >>> [standing.run for standing in rank(runs, smallest_first=False)]
    ['2', '1', '0']
    """
    with_value = [standing for standing in standings if standing.value is not None]
    without = [standing for standing in standings if standing.value is None]
    return [*sorted(with_value, key=lambda s: s.value or 0.0, reverse=not smallest_first), *without]


def explain_missing(runs: Sequence[RunDir], metric: str) -> ConfigError | None:
    """Return why no run has a metric; None if a run may still get it, or no run has logged anything."""
    for run in runs:
        if rows := read_rows(run.metrics):
            summary = summarize_run(run)
            # A missing value may still become a number.
            found = [path for path, value in _flatten(summary).items() if value is None or _number(value) is not None]
            known = [*found, *sorted({key for row in rows for key in row})]
            if metric in known:
                return None
            why = " (with data.num_eval=0 nothing is evaluated)" if summary["rows"].get("held_out") == 0 else ""
            near = find_near(metric, known)
            usual = [key for key in _USUAL if key in known]
            hint = f"did you mean {near}? " if near else f"--metric {usual[0]}; " if usual else ""
            return ConfigError(
                f"no run has the metric {metric}{why}",
                action=f"{hint}every key is in {run.metrics} or, with dots, in summary.json",
            )
    return None


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a summary by dotted path."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def build_table(standings: Sequence[RankedRun], metric: str) -> list[list[str]]:
    """Return rows of cells, the headings first. The swept keys follow five fixed columns."""
    keys = list(dict.fromkeys(key for standing in standings for key in standing.overrides))
    rows = [["#", metric, "RUN", "STATE", "STEP", *keys, "WHERE OR WHY"]]
    for place, run in enumerate(standings, start=1):
        value, number = ("-", "-") if run.value is None else (f"{run.value:.6g}", str(place))
        swept = (run.overrides.get(key, "") for key in keys)
        rows.append([number, value, run.run, run.state, run.step, *swept, run.why])
    return rows if any(run.why for run in standings) else [row[:-1] for row in rows]


def render_standings(standings: Sequence[RankedRun], metric: str, width: int | None = None) -> str:
    """Return the table as text, one line per run.

    Args:
        width: columns of the terminal. In a wider table keys lose their sections, cells are cut, the longest first, and
            the last columns are left out.
    """
    rows = build_table(standings, metric)
    if width is not None and sum(max(map(len, column)) for column in zip(*rows, strict=True)) > width:
        rows[0] = [name.rpartition(".")[2] if at >= _NUM_FIXED else name for at, name in enumerate(rows[0])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    longest_first = sorted(range(_NUM_FIXED, len(widths)), key=lambda at: -widths[at])
    fitted = fit(rows, width, [Shrink(at, _LEAST, keeps_end=True) for at in longest_first])
    return "\n".join(join_row(row) for row in fitted)


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
