"""The table of `status` as a picture, for a page or a mail: each line is filled as far as its run has come. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from slurm_rl.cli.columns import GAP
from slurm_rl.cli.status_table import STYLES, RunLine, render_runs

_COLOURS = {"green": "#1d7a3d", "cyan": "#2f6fde", "yellow": "#8a6a00", "red": "#c0362c"}
"""Of the states' styles, on white."""
_TEXT, _FAINT, _LIGHT = "#1b2330", "#6b7484", "#eef0f4"
_CHAR, _LINE, _EDGE = 8.0, 30, 20
"""Width of a character, which the text is told to have whatever font there is; height of a line; the margin."""


def draw_runs(lines: Sequence[RunLine], title: str) -> str:
    """An SVG that needs nothing besides itself.

    Args:
        title: of what, and when; whoever looks at a picture asks for both.
    """
    from rich.cells import cell_len

    heading, *rows = render_runs(lines, None)
    longest = max(cell_len(GAP.join(row)) for row in (heading, *rows))
    width = max(longest, cell_len(title)) * _CHAR
    parts = [_draw_text(title, 0, 0, _TEXT), *_draw_cells(heading, 1, dict.fromkeys(heading, _FAINT))]
    for place, (line, row) in enumerate(zip(lines, rows, strict=True), 2):
        colour = _COLOURS.get(STYLES.get(line.state, ""), _TEXT)
        done = min(1.0, line.done / line.total) if line.done is not None and line.total else 0.0
        for share, fill, opacity in ((1.0, _LIGHT, 1.0), (done, colour, 0.22)):
            size = f'width="{share * (width + 16):.1f}" height="{_LINE - 6}" rx="4"'
            at = f'x="{_EDGE - 8}" y="{_top(place) - _LINE + 13}"'
            parts.append(f'<rect {at} {size} fill="{fill}" fill-opacity="{opacity}"/>')
        parts += _draw_cells(row, place, {row[1]: colour})
    box = f"{width + 2 * _EDGE:.0f} {_top(len(rows) + 1) + _EDGE}"
    size = 'width="{}" height="{}"'.format(*box.split())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {box}" {size} role="img" font-size="13" '
        'font-family="ui-monospace, Menlo, Consolas, monospace"><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _top(place: int) -> int:
    return _EDGE + 12 + place * _LINE


def _draw_cells(row: Sequence[str], place: int, colours: dict[str, str]) -> list[str]:
    from rich.cells import cell_len

    texts, x = [], 0
    for cell in row:
        texts.append(_draw_text(cell.rstrip(), x, place, colours.get(cell, _TEXT)))
        x += cell_len(cell) + len(GAP)
    return texts


def _draw_text(text: str, x: int, place: int, colour: str) -> str:
    from rich.cells import cell_len

    if not text:
        return ""
    length = f'textLength="{cell_len(text) * _CHAR:.0f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{_EDGE + x * _CHAR:.0f}" y="{_top(place)}" {length} fill="{colour}">{escape(text)}</text>'
