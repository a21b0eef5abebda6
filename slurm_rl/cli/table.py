"""Tables of text that fit a terminal, and the table of `status`."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.cli.output import to_printable

GAP = "  "


@dataclass(frozen=True)
class Shrink:
    """A column that may be cut."""

    column: int
    least: int
    """Characters that it keeps."""
    keeps_end: bool = False
    """Cut in the middle, to keep both ends of a name."""


def fit(rows: Sequence[Sequence[str]], width: int | None, shrink: Sequence[Shrink]) -> list[list[str]]:
    """Pad the cells to the width of their column, so that no line with GAP between cells is longer than `width`.

    Args:
        rows: cells of each line.
        width: in characters; None cuts nothing, for a file or another program.
        shrink: columns to cut, in this order; then the last columns are left out.

    >>> [GAP.join(row) for row in fit([("RUN", "WHY"), ("a-20261121", "out of memory")], 18, [Shrink(1, 4)])]
    ['RUN         WHY', 'a-20261121  out o…']
    """
    from rich.cells import cell_len

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if width is not None:
        for each in shrink:
            excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
            if excess > 0:
                least = min(each.least, widths[each.column])
                widths[each.column] = max(least, widths[each.column] - excess)
        while len(widths) > 1 and sum(widths) + len(GAP) * (len(widths) - 1) > width:
            widths.pop()
        if len(widths) == 1:
            widths = [min(widths[0], width)]
    middle = {each.column for each in shrink if each.keeps_end}
    fitted = [[cut(row[at], size, keeps_end=at in middle) for at, size in enumerate(widths)] for row in rows]
    return [[*row[:-1], row[-1].rstrip()] for row in fitted]


def cut(text: str, width: int, *, keeps_end: bool = False) -> str:
    """Return the text in exactly `width` cells of a terminal.

    >>> cut("addition-20261121-101500", 15, keeps_end=True), cut("abc", 5), cut("abcdef", 4)
    ('additio…-101500', 'abc  ', 'abc…')
    """
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return set_cell_size(text, width)
    tail = text[len(text) - (width - 1) // 2 :] if keeps_end else ""
    return set_cell_size(text, width - 1 - cell_len(tail)) + "…" + tail


def join_row(row: Sequence[str]) -> str:
    return GAP.join(row).rstrip()


def find_screen() -> os.terminal_size | None:
    """Return the size of the terminal that stdout is; None for a file or a pipe."""
    return shutil.get_terminal_size() if sys.stdout.isatty() else None


def find_width() -> int | None:
    """Return the columns of the terminal; None for a file or a pipe."""
    screen = find_screen()
    return None if screen is None else screen.columns


# ---- the table of runs ---------------------------------------------------------------------------

STYLES = {"finished": "green", "running": "cyan", "pending": "yellow", "interrupted": "yellow"}
STYLES |= dict.fromkeys(("failed", "dead", "cancelled", "lost"), "red")
"""Colours of states, legible on a light and on a dark terminal."""
_LINES_AROUND = 3
"""The heading, the line of omitted runs, and the prompt."""
_WIDE = 100


@dataclass(frozen=True)
class RunLine:
    """A run in the table, or a sweep as one line."""

    name: str
    state: str
    """One word."""
    age_s: float
    """Seconds since the first submission."""
    job: str = "-"
    done: int | None = None
    """Steps, or finished runs of a sweep."""
    total: int = 0
    """0 if unknown."""
    metric: tuple[str, float] | None = None
    """Name and newest value of the watched metric."""
    why: str = ""
    """Node, reason of a wait, or cause of the end."""


def build_rows(lines: Sequence[RunLine], *, with_job: bool) -> list[list[str]]:
    """Return the cells, the headings first, without control characters."""
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
        rows.append([to_printable(cell).partition("\n")[0].replace("\t", " ") for cell in cells])
    return rows


def render_runs(lines: Sequence[RunLine], screen: os.terminal_size | None) -> list[list[str]]:
    """Return rows of cells that fit the screen, the headings first; if runs are left out, the last row is one cell.

    Args:
        lines: newest first.
        screen: None shows everything.
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
        text = to_printable(f"and {len(left)} more: {counts} (all: | less)")
        rows.append([text if width is None else text[:width]])
    return rows


def format_age(seconds: float) -> str:
    """Return seconds in the largest unit of which there are at least two.

    >>> [format_age(s) for s in (-3, 59, 150, 7199, 7200, 200_000, 3_000_000)]
    ['0 s', '59 s', '2 min', '119 min', '2 h', '2 d', '34 d']
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, seconds):.0f} s"
