"""Render the ledger as one SVG bar, inline or as a file. Pure functions."""

from __future__ import annotations

import textwrap
from html import escape

from slurm_rl.plugins.goodput.nouns import Ledger
from slurm_rl.plugins.goodput.words import WORDS, render_line, split

WIDTH, _BAR = 760, 30
_LEGEND_Y, _LINE = 56, 22
_LONGEST = 108
"""Characters of a line of the sentence."""
_COLOURS = {
    WORDS["trained"]: "#2f6fde",
    WORDS["evaluated"]: "#6ea4ff",
    WORDS["gate"]: "#c9a400",
    WORDS["bring_up"]: "#e0a81a",
    WORDS["saving"]: "#1d9a6c",
    WORDS["spare"]: "#b1489f",
    WORDS["teardown"]: "#8a93a3",
    WORDS["other"]: "#c3c9d3",
}
_LOST = "#c0362c"
"""Color of time charged to a cause."""
_LEAST = 0.004
"""Smallest visible share; smaller ones are only in the table."""


def draw_bar(ledger: Ledger) -> str:
    """An SVG with its colours inside; every part has a title that a pointer shows."""
    parts = [(name, share) for name, share in split(ledger) if share >= _LEAST]
    x, bars, legend, at, line = 0.0, [], [], 0.0, 0
    for name, share in parts:
        width = share * WIDTH
        title = f"{share:.1%} {name}"
        bars.append(
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{_BAR}" fill="{_colour(name)}">'
            f"<title>{escape(title)}</title></rect>"
        )
        x += width
        # Estimated text width: wide enough for most fonts.
        needed = 30 + 7.2 * len(title)
        if at + needed > WIDTH and at:
            at, line = 0.0, line + 1
        y = _LEGEND_Y + line * _LINE
        legend.append(
            f'<rect x="{at:.0f}" y="{y - 10}" width="12" height="12" rx="2" fill="{_colour(name)}"/>'
            f'<text x="{at + 18:.0f}" y="{y}">{escape(title)}</text>'
        )
        at += needed
    height = _LEGEND_Y + line * _LINE + 8
    return (
        f'<svg class="goodput" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="currentColor">'
        f"<title>{escape(render_line(ledger))}</title>{''.join(bars)}{''.join(legend)}</svg>"
    )


def render_bar_file(ledger: Ledger) -> str:
    """Return a standalone SVG with the sentence, on a white background."""
    bar, lines = draw_bar(ledger), textwrap.wrap(render_line(ledger), _LONGEST)
    height, top = int(bar.split('viewBox="0 0 ')[1].split('"')[0].split()[1]), 22 + _LINE * len(lines)
    said = "".join(f'<text x="20" y="{30 + _LINE * place}">{escape(line)}</text>' for place, line in enumerate(lines))
    size = f'width="{WIDTH + 40}" height="{top + height + 16}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 40} {top + height + 16}" {size}>'
        '<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<g color="#1b2330" fill="#1b2330" font-family="system-ui, sans-serif" font-size="13">{said}'
        f'<svg x="20" y="{top}" width="{WIDTH}" height="{height}">{bar}</svg></g></svg>\n'
    )


def _colour(name: str) -> str:
    return _COLOURS.get(name, _LOST)
