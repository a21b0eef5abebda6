"""Tables of text that fit a terminal: a column is as wide as its cells, and cut where the terminal ends."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "


@dataclass(frozen=True)
class Shrink:
    """A column that may be cut."""

    column: int
    least: int
    """Characters it keeps."""
    keeps_end: bool = False
    """Cut in the middle: begin and end both say which it is."""


def fit(rows: Sequence[Sequence[str]], width: int | None, shrink: Sequence[Shrink]) -> list[list[str]]:
    """The cells padded to the width of their column; with GAP between them no line is longer than `width`.

    Args:
        width: in characters; None: nothing is cut, for a file or another program.
        shrink: which columns give way, in this order; then the last ones are left out.

    >>> [GAP.join(row) for row in fit([("RUN", "WHY"), ("a-20261121", "out of memory")], 18, [Shrink(1, 4)])]
    ['RUN         WHY', 'a-20261121  out o…']
    """
    from rich.cells import cell_len

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    room = None if width is None else width - len(GAP) * (len(widths) - 1)
    for each in shrink:
        if room is not None and sum(widths) > room:
            widths[each.column] = max(min(each.least, widths[each.column]), widths[each.column] - sum(widths) + room)
    while width is not None and len(widths) > 1 and sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widths.pop()
    if width is not None and len(widths) == 1:
        widths = [min(widths[0], width)]
    middle = {each.column for each in shrink if each.keeps_end}
    fitted = [[cut(row[at], room, keeps_end=at in middle) for at, room in enumerate(widths)] for row in rows]
    for row in fitted:
        row[-1] = row[-1].rstrip()
    return fitted


def cut(text: str, width: int, *, keeps_end: bool = False) -> str:
    """The text in exactly so many cells of a terminal.

    >>> cut("addition-20261121-101500", 15, keeps_end=True), cut("abc", 5), cut("abcdef", 4)
    ('additio…-101500', 'abc  ', 'abc…')
    """
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return set_cell_size(text, width)
    if not keeps_end:
        return set_cell_size(text, width - 1) + "…"
    tail = text[len(text) - (width - 1) // 2 :]
    return set_cell_size(text, width - 1 - cell_len(tail)) + "…" + tail


def find_screen() -> os.terminal_size | None:
    """The terminal that stdout is; None: it is none, and gets everything."""
    return shutil.get_terminal_size() if sys.stdout.isatty() else None


def find_width() -> int | None:
    """Its columns."""
    screen = find_screen()
    return None if screen is None else screen.columns
