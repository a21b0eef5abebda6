"""The table of `status`: a line a run, newest first, in the columns and lines that the terminal has. Pure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.cli.columns import GAP, Shrink, fit
from slurm_rl.cli.told import show_plainly

STYLES = {"finished": "green", "running": "cyan", "pending": "yellow", "interrupted": "yellow"}
STYLES |= dict.fromkeys(("failed", "dead", "cancelled", "lost"), "red")
"""Colours of states; both a light and a dark terminal show them well. Others have none."""
_LINES_AROUND = 3
"""The heading, the line of those left out, and the prompt that comes after."""
_WIDE = 100


@dataclass(frozen=True)
class RunLine:
    """What the table says of a run, or of a sweep as one."""

    name: str
    state: str
    """One word."""
    age_s: float
    """Seconds since it was submitted first."""
    job: str = "-"
    done: int | None = None
    """Steps, or of a sweep its runs that have ended."""
    total: int = 0
    """0: not known."""
    metric: tuple[str, float] | None = None
    """Name and newest value of what is watched."""
    why: str = ""
    """Where it runs, why it waits or ended."""


def build_rows(lines: Sequence[RunLine], *, with_job: bool) -> list[list[str]]:
    """Cells, the headings first; words of others have no control characters."""
    names = {line.metric[0] for line in lines if line.metric}
    heading = names.pop().upper() if len(names) == 1 else "METRIC"
    rows = [["RUN", "STATE", "STEP", "DONE", heading, "AGE", *(["JOB"] if with_job else []), "WHERE OR WHY"]]
    for line in lines:
        step = "-" if line.done is None else f"{line.done}/{line.total}" if line.total else str(line.done)
        share = f"{min(1.0, line.done / line.total):.0%}" if line.done is not None and line.total else "-"
        value = "-" if line.metric is None else f"{line.metric[1]:.3f}"
        if line.metric and heading == "METRIC":
            value = f"{line.metric[0]} {value}"
        job = [line.job] if with_job else []
        cells = [line.name, line.state, step, share, value, format_age(line.age_s), *job, line.why]
        rows.append([show_plainly(cell).partition("\n")[0].replace("\t", " ") for cell in cells])
    return rows


def render_runs(lines: Sequence[RunLine], screen: os.terminal_size | None) -> list[list[str]]:
    """Rows of cells that fit the screen, the headings first; where runs are left out, the last row is one cell.

    Args:
        lines: newest first.
        screen: None: everything is shown.
    """
    shown = lines
    if screen is not None and len(lines) > max(1, screen.lines - _LINES_AROUND + 1):
        shown = lines[: max(1, screen.lines - _LINES_AROUND)]
    width = None if screen is None else screen.columns
    table = build_rows(shown, with_job=width is None or width >= _WIDE)
    shrink = [Shrink(len(table[0]) - 1, 14), Shrink(0, 12, keeps_end=True)]
    if not any(row[-1] for row in table[1:]):
        table, shrink = [row[:-1] for row in table], shrink[1:]
    rows = fit(table, width, shrink)
    if left := lines[len(shown) :]:
        counts = ", ".join(f"{number} {word}" for word, number in Counter(line.state for line in left).most_common())
        text = show_plainly(f"and {len(left)} more: {counts} (all: | less)")
        rows.append([text if width is None else text[:width]])
    return rows


def join_row(row: Sequence[str]) -> str:
    return GAP.join(row).rstrip()


def format_age(seconds: float) -> str:
    """Seconds in the largest unit of which there is at least two.

    >>> [format_age(s) for s in (-3, 59, 150, 7199, 7200, 200_000, 3_000_000)]
    ['0 s', '59 s', '2 min', '119 min', '2 h', '2 d', '34 d']
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, seconds):.0f} s"
