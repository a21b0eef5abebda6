"""Small charts as inline SVG: a line chart and a stacked bar chart. Numbers in, text out.

Colours, fonts and the dark theme come from the page's style sheet (classes `c0` to `c6`); hovering
shows the numbers through the browser's own `<title>` tips, so no script is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 30

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve. The x of its points rise."""

    label: str
    points: list[Point]
    color: int = 0
    faint: bool = False
    """Drawn thin and pale: the raw values behind a smoothed curve."""
    dots: bool = False
    """With a mark at each point, for curves of few points."""


@dataclass(frozen=True)
class Bar:
    """One column of a stacked chart: `values` from the bottom up."""

    x: float
    values: list[float]


@dataclass(frozen=True)
class Frame:
    """The plot area, and how numbers map to it."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)


def line_chart(lines: list[Line]) -> str:
    """A chart of one or more curves over the step."""
    points = [point for line in lines for point in line.points]
    frame = _fit([x for x, _ in points], [y for _, y in points])
    curves = "".join(_curve(line, frame) for line in lines)
    return _svg(_axes(frame) + curves + _line_tips(lines, frame))


def stacked_chart(labels: list[str], bars: list[Bar]) -> str:
    """A chart of stacked columns over the step; `labels` name the values of each column."""
    step = min((right.x - left.x for left, right in pairwise(bars)), default=1.0)
    ends = [bars[0].x - step / 2, bars[-1].x + step / 2]
    frame = _fit(ends, [0.0, *(sum(bar.values) for bar in bars)])
    width = max(1.0, (frame.x(ends[0] + step) - frame.x(ends[0])) * 0.86)
    columns = "".join(_column(labels, bar, width, frame) for bar in bars)
    return _svg(_axes(frame) + columns)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span low to high, about `count` of them.

    >>> nice_ticks(0.0, 0.83)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    # Significant digits, not decimal places: curves around 1e-13 have ticks too.
    return [float(f"{index * size:.12g}") for index in range(first, last + 1)]


def format_number(value: float) -> str:
    """A number as short as it can be read.

    >>> [format_number(v) for v in (0, 1200, 0.25, 2500000.0, 0.000012)]
    ['0', '1200', '0.25', '2.5M', '1.2e-05']
    """
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _fit(xs: list[float], ys: list[float]) -> Frame:
    """Axes that hold all values; y starts at 0 unless the values are far from it."""
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    y_low, y_high = min(ys), max(ys)
    if 0 < y_low < 0.5 * y_high:
        y_low = 0.0
    if y_high - y_low <= 1e-9 * abs(y_high):
        pad = abs(y_low) / 10 or 0.5
        y_low, y_high = y_low - pad, y_high + pad
    ticks = nice_ticks(y_low, y_high)
    return Frame(x_low, x_high, ticks[0], ticks[-1])


def _axes(frame: Frame) -> str:
    parts = []
    for value in nice_ticks(frame.y_low, frame.y_high):
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 8}" y="{y + 5:.1f}">{format_number(value)}</text>')
    for value in nice_ticks(frame.x_low, frame.x_high, 6):
        if frame.x_low <= value <= frame.x_high and value == int(value):
            x = frame.x(value)
            parts.append(f'<text class="tick mid" x="{x:.1f}" y="{HEIGHT - 10}">{format_number(value)}</text>')
    return "".join(parts)


def _curve(line: Line, frame: Frame) -> str:
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
    faint = " faint" if line.faint else ""
    drawn = f'<polyline class="line c{line.color}{faint}" points="{path}"/>'
    if line.dots or len(line.points) == 1:
        drawn += "".join(
            f'<circle class="dot c{line.color}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3.5"/>'
            for x, y in line.points
        )
    return drawn


def _line_tips(lines: list[Line], frame: Frame) -> str:
    """An invisible strip over each x, which lights up and tells the value of every curve there."""
    values: dict[float, list[str]] = {}
    for line in lines:
        for x, y in line.points:
            values.setdefault(x, []).append(f"{line.label} {format_number(y)}")
    xs = sorted(values)
    middles = [(left + right) / 2 for left, right in pairwise(xs)]
    return "".join(
        _tip(frame.x(low), frame.x(high), [f"step {format_number(x)}", *values[x]])
        for x, low, high in zip(xs, [frame.x_low, *middles], [*middles, frame.x_high], strict=True)
    )


def _column(labels: list[str], bar: Bar, width: float, frame: Frame) -> str:
    left, base, parts = frame.x(bar.x) - width / 2, 0.0, []
    for color, value in enumerate(bar.values):
        top, bottom = frame.y(base + value), frame.y(base)
        if value > 0:
            parts.append(
                f'<rect class="bar c{color}" x="{left:.1f}" width="{width:.1f}" '
                f'y="{top:.1f}" height="{bottom - top:.1f}"/>'
            )
        base += value
    told = [f"{label} {format_number(value)} s" for label, value in zip(labels, bar.values, strict=True)]
    return "".join(parts) + _tip(left, left + width, [f"step {format_number(bar.x)}", *told])


def _tip(left: float, right: float, told: list[str]) -> str:
    title = escape("\n".join(told))
    return (
        f'<rect class="tip" x="{left:.1f}" width="{max(1.0, right - left):.1f}" '
        f'y="{TOP}" height="{HEIGHT - TOP - BOTTOM}"><title>{title}</title></rect>'
    )


def _svg(body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}">{body}</svg>'
