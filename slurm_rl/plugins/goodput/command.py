"""`report --goodput`: GPU-time of runs by cause, from their directories, or by Slurm's accounting."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from slurm_rl.cli.output import to_printable
from slurm_rl.cli.table import Shrink, find_width, fit, join_row
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.launch.runs.find import parse_path
from slurm_rl.launch.slurm.commands import query_starts
from slurm_rl.plugins.goodput.allocations import NOT_BILLED, Billed
from slurm_rl.plugins.goodput.read import add_ledgers, find_runs, read_jobs, read_ledger, read_mfu
from slurm_rl.plugins.goodput.render import render_held, render_line, render_ratio, render_time
from slurm_rl.plugins.goodput.types import BUCKETS, Ledger
from slurm_rl.plugins.report.goodput_bar import render_bar_file
from slurm_rl.run_dir.run_dir import RunDir, expect_writable, write_text

_RUNS = "runs"


def run(args: argparse.Namespace) -> int:
    since = None if args.since is None else parse_since(args.since, time.time())
    folders = [parse_path(word) for word in args.rest or [_RUNS]]
    runs = list({found.path: found for folder in folders for found in _require_runs(folder)}.values())
    billed = ask_accounting(runs) if args.accounting else NOT_BILLED
    both = [(found, ledger) for found in runs if (ledger := read_ledger(found, since=since, billed=billed))]
    if not both:
        print("no attempt of these runs has started" + (f" or held nodes since {args.since}" if args.since else ""))
        return 0
    totals = [total for unit in ("GPU", "node") if (total := add_ledgers([it for _, it in both if it.unit == unit]))]
    if args.svg:
        save_bar(args.svg, totals[0])
    if args.json:
        print(json.dumps([{"run_dir": str(it.path), **ledger.to_json()} for it, ledger in both], indent=2))
    elif len(both) == 1:
        print(to_printable(render_one(*both[0], whole=since is None)))
    else:
        print(to_printable("\n".join([render_many(both, find_width()), "", *map(render_line, totals)])))
    return 0


def ask_accounting(runs: Sequence[RunDir]) -> Billed:
    """Return the times that Slurm billed for the jobs of these runs, by one query.

    Raises:
        SlurmUnavailableError: there is no accounting, or it does not answer.
    """
    jobs = sorted({job for run in runs for job in read_jobs(run) if re.fullmatch(r"\d+(_\d+)?", job)})
    return query_starts(jobs) if jobs else NOT_BILLED


def save_bar(path: Path, total: Ledger) -> None:
    """The picture of a ledger as a file.

    Raises:
        RunDirError: it cannot be written there.
    """
    with expect_writable(path, "or name another file", what="--svg"):
        write_text(path, render_bar_file(total))


def parse_since(text: str, now: float) -> float:
    """Seconds since 1970 of a day (2026-11-01), or of so many days ago (30d).

    >>> parse_since("30d", 2_592_060.0)
    60.0
    """
    if days := re.fullmatch(r"(\d{1,5})d", text):
        return now - 86400.0 * int(days[1])
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError("--since must be a day or a number of days", seen=text, action="2026-11-01, or 30d") from None


def _require_runs(folder: Path) -> list[RunDir]:
    found = find_runs(folder)
    if not found:
        action = "name a run, or a folder of runs"
        raise RunDirError("the path must be a run, or a folder with runs", seen=str(folder), action=action)
    return found


def render_one(run: RunDir, ledger: Ledger, *, whole: bool) -> str:
    """Return the sentence, the ratios and every bucket with its description.

    Args:
        whole: the start is included, so that the metrics cover all computation.
    """
    ratios = [f"goodput {render_ratio(ledger.goodput)}", f"ETTR {render_ratio(ledger.ettr)}"]
    if whole:
        mfu = read_mfu(run, ledger)
        ratios.append(f"MFU {render_ratio(mfu.value)}" + (f" ({mfu.why})" if mfu.why else ""))
    rows = [["BUCKET", f"{ledger.unit.upper()}-SECONDS", "SHARE", "WHAT"]]
    for name, what in BUCKETS.items():
        seconds = ledger.buckets.get(name, 0.0)
        share = seconds / ledger.held_s if ledger.held_s else 0.0
        rows.append([name.replace("_", "-"), f"{seconds:,.1f}", f"{share:.1%}", what])
    table = fit(rows, find_width(), [Shrink(3, 14)])
    lines = [join_row(row) for row in table]
    return "\n".join([render_line(ledger), ", ".join(ratios), "", *lines])


def render_many(both: Sequence[tuple[RunDir, Ledger]], width: int | None) -> str:
    """A line a run, the one that held most first."""
    rows = [["RUN", "HELD", "GOODPUT", "ETTR", "QUEUED", "LOST MOST TO"]]
    for run, ledger in sorted(both, key=lambda pair: -pair[1].held_s):
        lost = ledger.charges[0] if ledger.charges else None
        cause = "-" if lost is None else f"{lost.cause.name or lost.cause.kind} ({lost.seconds / ledger.held_s:.0%})"
        ratios = [render_ratio(ledger.goodput), render_ratio(ledger.ettr)]
        rows.append([run.path.name, render_held(ledger), *ratios, render_time(ledger.queue_s), cause])
    return "\n".join(join_row(row) for row in fit(rows, width, [Shrink(0, 12, keeps_end=True)]))
