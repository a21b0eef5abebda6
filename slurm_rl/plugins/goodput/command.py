"""`report --goodput`: GPU-time of runs by cause, from their directories."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.output import to_printable
from slurm_rl.cli.table import Shrink, find_width, fit, format_age, join_row
from slurm_rl.errors import RunDirError
from slurm_rl.launch.runs.find import resolve
from slurm_rl.plugins.goodput.read import find_runs, read_ledger, read_mfu
from slurm_rl.plugins.goodput.render import render_held, render_line, render_ratio
from slurm_rl.plugins.goodput.types import BUCKETS, Ledger
from slurm_rl.run_dir.run_dir import RunDir

_RUNS = "runs"


def run(args: argparse.Namespace) -> int:
    folders = [resolve(word) for word in args.rest or [_RUNS]]
    runs: dict[Path, RunDir] = {}
    for folder in folders:
        if not (found := find_runs(folder)):
            action = "name a run, or a folder of runs"
            raise RunDirError("the path must be a run, or a folder with runs", seen=str(folder), action=action)
        runs |= {one.path: one for one in found}
    both = [(one, ledger) for one in runs.values() if (ledger := read_ledger(one))]
    if not both:
        print("no attempt of these runs has started")
    elif args.json:
        print(json.dumps([{"run_dir": str(it.path), **ledger.to_json()} for it, ledger in both], indent=2))
    elif len(both) == 1:
        print(to_printable(render_one(*both[0])))
    else:
        print(to_printable(render_many(both, find_width())))
    return 0


def render_one(run: RunDir, ledger: Ledger) -> str:
    """Return the sentence, the ratios and every bucket with its description."""
    mfu = read_mfu(run, ledger)
    ratios = [f"goodput {render_ratio(ledger.goodput)}", f"ETTR {render_ratio(ledger.ettr)}"]
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
    """Return one line per run, most GPU time first."""
    rows = [["RUN", "HELD", "GOODPUT", "ETTR", "QUEUED", "LOST MOST TO"]]
    for run, ledger in sorted(both, key=lambda pair: -pair[1].held_s):
        lost = ledger.charges[0] if ledger.charges else None
        cause = "-" if lost is None else f"{lost.cause.name or lost.cause.kind} ({lost.seconds / ledger.held_s:.0%})"
        ratios = [render_ratio(ledger.goodput), render_ratio(ledger.ettr)]
        rows.append([run.path.name, render_held(ledger), *ratios, format_age(ledger.queue_s), cause])
    return "\n".join(join_row(row) for row in fit(rows, width, [Shrink(0, 12, keeps_end=True)]))
