"""Render the ledger as one SVG bar, inline or as a file. Pure."""

from __future__ import annotations

import textwrap
from html import escape

from slurm_rl.plugins.goodput.render import render_line, split
from slurm_rl.plugins.goodput.types import Ledger

WIDTH, _BAR = 760, 30
_LEGEND_Y, _LINE = 56, 22
_MAX_CHARS = 108
"""Characters in a line of the sentence."""
_COLORS = {
    "trained": "#2f6fde",
    "evaluated": "#6ea4ff",
    "gate": "#c9a400",
    "bring_up": "#e0a81a",
    "saving": "#1d9a6c",
    "spare": "#b1489f",
    "teardown": "#8a93a3",
    "other": "#c3c9d3",
}
_LOST = "#c0362c"
"""Color of time charged to a cause."""
_LEAST = 0.004
"""Smallest visible share; smaller ones are only in the table."""


def draw_bar(ledger: Ledger) -> str:
    """Return an SVG with a legend and tooltips; its colors are inside."""
    x, bars, legend, at, line = 0.0, [], [], 0.0, 0
    for bucket, name, share in split(ledger):
        if share < _LEAST:
            continue
        width, title, color = share * WIDTH, escape(f"{share:.1%} {name}"), _COLORS.get(bucket, _LOST)
        rect = f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{_BAR}" fill="{color}">'
        bars.append(f"{rect}<title>{title}</title></rect>")
        x += width
        # Estimated text width: wide enough for most fonts.
        needed = 30 + 7.2 * len(f"{share:.1%} {name}")
        if at + needed > WIDTH and at:
            at, line = 0.0, line + 1
        y = _LEGEND_Y + line * _LINE
        mark = f'<rect x="{at:.0f}" y="{y - 10}" width="12" height="12" rx="2" fill="{color}"/>'
        legend.append(f'{mark}<text x="{at + 18:.0f}" y="{y}">{title}</text>')
        at += needed
    height = _LEGEND_Y + line * _LINE + 8
    return (
        f'<svg class="goodput" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="currentColor">'
        f"<title>{escape(render_line(ledger))}</title>{''.join(bars)}{''.join(legend)}</svg>"
    )


def render_bar_file(ledger: Ledger) -> str:
    """Return a standalone SVG with the sentence, on a white background."""
    bar, lines = draw_bar(ledger), textwrap.wrap(render_line(ledger), _MAX_CHARS)
    height, top = int(bar.split('viewBox="0 0 ')[1].split('"')[0].split()[1]), 22 + _LINE * len(lines)
    text = "".join(f'<text x="20" y="{30 + _LINE * place}">{escape(line)}</text>' for place, line in enumerate(lines))
    size = f'width="{WIDTH + 40}" height="{top + height + 16}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 40} {top + height + 16}" {size}>'
        '<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<g color="#1b2330" fill="#1b2330" font-family="system-ui, sans-serif" font-size="13">{text}'
        f'<svg x="20" y="{top}" width="{WIDTH}" height="{height}">{bar}</svg></g></svg>\n'
    )
