"""Draw line charts and stacked bars as inline SVG without scripts. Colors and fonts are those of page.html. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

Point = tuple[float, float]
"""Step and value."""
MAX_POINTS = 120
"""Longer curves are binned, which bounds the size of a report."""
MAX_COMPARED_POINTS = 60
"""Points per run in a chart of several runs."""
FEW_POINTS = 24
"""Longer curves are smoothed, and their points are shown on hover only."""
_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT = 430.0, 66.0, 14.0, 8.0, 190.0
_LEGEND_LINE = 20.0
_LETTER = 7.5
"""Estimated width of a letter."""
_NUM_TICKS = 4


def bin_points(points: list[Point], most: int = MAX_POINTS) -> list[Point]:
    """Return at most `most` points: means of neighbors, each at its last step."""
    size = -(-len(points) // most)
    bins = [points[start : start + size] for start in range(0, len(points), max(1, size))]
    return [(part[-1][0], fmean(y for _, y in part)) for part in bins]


def moving_mean(points: list[Point], half_width: int) -> list[Point]:
    """Return the mean of each point and `half_width` neighbors on either side, fewer at the ends."""
    smoothed = []
    for index, (x, _) in enumerate(points):
        near = points[max(0, index - half_width) : index + half_width + 1]
        smoothed.append((x, fmean(y for _, y in near)))
    return smoothed


def format_number(value: float) -> str:
    """Return a number in short form.

    >>> [format_number(v) for v in (0, 2500000.0, 0.25, 0.1 + 0.2, 0.000012)]
    ['0', '2,500,000', '0.25', '0.3', '1.2e-05']
    """
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"


def ticks(low: float, high: float) -> list[float]:
    """Return three to six round numbers between low and high.

    >>> ticks(0.0, 1.0), ticks(3.0, 17.0)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [5.0, 10.0, 15.0])
    """
    raw = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= raw * (1 - 1e-9))
    return [place * step for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Axis:
    """Linear scale from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    @staticmethod
    def over(values: Sequence[float], start: float, end: float) -> Axis:
        """Return an axis that spans the values; a single value lies in its middle."""
        low, high = min(values), max(values)
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            low, high = low - (abs(low) / 2 or 1.0), high + (abs(high) / 2 or 1.0)
        return Axis(low, high, start, end)

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def _horizontal(values: Sequence[float]) -> Axis:
    return Axis.over(values, _LEFT, _WIDTH - _RIGHT)


def _vertical(values: Sequence[float]) -> Axis:
    return Axis.over(values, _TOP + _HEIGHT, _TOP)


def draw_lines(curves: Mapping[str, list[Point]], pale: Sequence[list[Point]] = ()) -> str:
    """Return a chart of curves by label. A long curve is smoothed; if it is the only one, its raw values are shown too.

    Args:
        pale: curves to draw in grey behind the others; values far outside of the others are omitted.
    """
    binned = {
        label: bin_points(points, MAX_POINTS if len(curves) < 3 else MAX_COMPARED_POINTS)
        for label, points in curves.items()
    }
    is_long, is_single = max(map(len, binned.values())) > FEW_POINTS, len(curves) == 1
    if is_long and not is_single:
        binned = {label: smooth(points) for label, points in binned.items()}
    values = [value for points in binned.values() for _, value in points]
    low, high = min(values), max(values)
    x = _horizontal([step for points in binned.values() for step, _ in points])
    y = _vertical([*values, 0.0] if 0 < low < high / 2 else values)
    parts = [_draw_axes(x, y)]
    room = (high - low) or abs(high) or 1.0
    behind = [
        part
        for points in pale
        for part in split_far(smooth(bin_points(points, MAX_COMPARED_POINTS)), low - room, high + room)
    ]
    parts += [_draw_path(part, x, y, "others") for part in behind]
    for index, (label, points) in enumerate(binned.items()):
        color = f"color-{index}"
        parts.append(_draw_path(points, x, y, f"{color} raw" if is_long and is_single else color))
        parts += [
            f'<circle class="{color}" cx="{x.at(step):.1f}" cy="{y.at(value):.1f}" r="3.5">'
            f"<title>{escape(f'step {format_number(step)}: {label} {format_number(value)}')}</title></circle>"
            for step, value in points
        ]
        if is_long and is_single:
            parts.append(_draw_path(smooth(points), x, y, color))
    labels = [*binned, *(["others"] if behind else [])]
    return _frame(parts, labels if len(labels) > 1 else [], "" if is_long else " marked")


def draw_stacked(parts: Mapping[str, list[Point]], unit: str) -> str:
    """Return stacked bars of several values per step; all lists have the same steps."""
    binned = {label: bin_points(points) for label, points in parts.items()}
    steps = [step for step, _ in next(iter(binned.values()))]
    totals = [sum(points[place][1] for points in binned.values()) for place in range(len(steps))]
    y, width = _vertical([0.0, *totals]), (_WIDTH - _RIGHT - _LEFT) / len(steps)
    x = Axis(-0.5, len(steps) - 0.5, _LEFT, _WIDTH - _RIGHT)
    every = -(-len(steps) // 5)
    drawn = [_draw_axes(x, y, {float(place): steps[place] for place in range(0, len(steps), every)})]
    below = [0.0] * len(steps)
    for index, (label, points) in enumerate(binned.items()):
        for place, (step, value) in enumerate(points):
            top, foot = y.at(below[place] + value), y.at(below[place])
            tip = escape(f"step {format_number(step)}: {label} {format_number(value)} {unit}")
            drawn.append(
                f'<rect class="color-{index}" x="{x.at(place) - 0.45 * width:.1f}" y="{top:.1f}" '
                f'width="{0.9 * width:.1f}" height="{max(0.0, foot - top):.1f}"><title>{tip}</title></rect>'
            )
            below[place] += value
    return _frame(drawn, list(binned), "")


def smooth(points: list[Point]) -> list[Point]:
    return moving_mean(points, len(points) // 25)


def split_far(points: list[Point], low: float, high: float) -> Iterator[list[Point]]:
    """Yield the parts of a curve between low and high; one run that diverged would flatten all others.

    >>> list(split_far([(1, 0.0), (2, 9.0), (3, 1.0)], -1.0, 2.0))
    [[(1, 0.0)], [(3, 1.0)]]
    """
    part: list[Point] = []
    for point in points:
        if low <= point[1] <= high:
            part.append(point)
        elif part:
            yield part
            part = []
    if part:
        yield part


def _draw_path(points: list[Point], x: Axis, y: Axis, kind: str) -> str:
    path = "L".join(f"{x.at(step):.1f},{y.at(value):.1f}" for step, value in points)
    return f'<path class="line {kind}" d="M{path}"/>' if points else ""


def _draw_axes(x: Axis, y: Axis, steps: Mapping[float, float] | None = None) -> str:
    """Return rules and numbers.

    Args:
        steps: place on the x axis -> step to write; None writes round steps.
    """
    steps = {step: step for step in ticks(x.low, x.high)} if steps is None else steps
    show: Callable[[float], str] = format_number
    rows = "".join(
        f'<path class="rule" d="M{_LEFT:.0f},{y.at(value):.1f}H{_WIDTH - _RIGHT:.0f}"/>'
        f'<text x="{_LEFT - 6:.0f}" y="{y.at(value) + 4:.1f}" text-anchor="end">{show(value)}</text>'
        for value in ticks(y.low, y.high)
    )
    columns = "".join(
        f'<text x="{x.at(place):.1f}" y="{_TOP + _HEIGHT + 18:.0f}" text-anchor="middle">{show(step)}</text>'
        for place, step in steps.items()
    )
    return rows + columns


def _frame(parts: Sequence[str], labels: Sequence[str], kind: str) -> str:
    """Return the SVG with a legend below the chart."""
    at, line, legend = 0.0, 0, []
    start = _TOP + _HEIGHT + 42
    for index, label in enumerate(labels):
        width = 34 + _LETTER * len(label)
        if at and at + width > _WIDTH:
            at, line = 0.0, line + 1
        color = "others" if label == "others" and index == len(labels) - 1 else f"color-{index}"
        top = start + line * _LEGEND_LINE
        legend.append(
            f'<rect class="{color}" x="{at:.0f}" y="{top - 10:.0f}" width="11" height="11"/>'
            f'<text class="legend" x="{at + 17:.0f}" y="{top:.0f}">{escape(label)}</text>'
        )
        at += width
    height = start + line * _LEGEND_LINE + 8 if labels else _TOP + _HEIGHT + 26
    body = "".join([*parts, *legend])
    return f'<svg class="chart{kind}" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{body}</svg>'
