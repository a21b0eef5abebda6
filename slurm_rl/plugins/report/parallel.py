"""Parallel coordinates of a sweep: an axis for each swept key, the metric at the right, a line for each run. Pure.

pygal has no such chart; this writes the SVG itself, with the colours of page.html. A run's line is told by the
browser's own tip.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from slurm_rl.plugins.report.leaderboard import RankedRun

WIDTH, HEIGHT = 1180, 340
_TOP, _BOTTOM, _LEFT, _RIGHT = 44.0, 322.0, 110.0, 1100.0
MAX_AXES = 8
"""Of swept keys; further ones are in the table."""
MAX_MARKS = 12
"""Values that get a place of their own on an axis; of more, numbers lie on a scale, and words keep their order."""
_LOG_ABOVE = 30.0
_SPREAD = 11.0
"""Lines through one value lie beside each other, up to so far to each side, the best on top."""
_MANY = 150
"""Runs whose lines are thinner."""
_LONGEST = 13
_PLACES = 4


@dataclass(frozen=True)
class Axis:
    """Where the values of a key lie, from 0 at the foot to 1."""

    name: str
    shares: dict[str, float]
    """Of every value that occurs."""
    marks: list[tuple[float, str]]
    """(share, text) to write beside the axis."""


def draw_parallel(standings: Sequence[RankedRun], metric: str) -> str:
    """The SVG; nothing where no run has a value, or nothing was swept.

    Args:
        standings: best first.
    """
    keys = list(dict.fromkeys(key for standing in standings for key in standing.overrides))[:MAX_AXES]
    values = [standing.value for standing in standings if standing.value is not None]
    if not keys or not values:
        return ""
    axes = [make_axis(key, [standing.overrides.get(key, "") for standing in standings]) for key in keys]
    ends = Axis(metric, {}, _scale(min(values), max(values)))
    root = Element(
        "svg", {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "class": f"parallel{' many' * (len(standings) > _MANY)}"}
    )
    xs = [_LEFT + (_RIGHT - _LEFT) * place / len(keys) for place in range(len(keys) + 1)]
    runs = SubElement(root, "g", {"class": "runs"})
    lines = _lines(standings, axes, xs, (min(values), max(values)))
    # The best is drawn last, over the others.
    for standing, points, share in reversed(lines):
        _draw_run(runs, standing, metric, points, share, is_best=standing is standings[0])
    for column, (x, axis) in enumerate(zip(xs, [*axes, ends], strict=True)):
        _draw_axis(root, x, axis, is_first=column == 0)
    return tostring(root, encoding="unicode")


def make_axis(name: str, values: Sequence[str]) -> Axis:
    """Few values have evenly spaced places in their order; many numbers lie on a linear or logarithmic scale.

    >>> make_axis("optim.lr", ["1e-3", "1e-5", "1e-4"]).shares
    {'1e-5': 0.0, '1e-4': 0.5, '1e-3': 1.0}
    """
    found = list(dict.fromkeys(values))
    numbers = {value: number for value in found if (number := _parse(value)) is not None}
    if len(numbers) == len(found):
        found.sort(key=numbers.__getitem__)
    if len(numbers) < len(found) or len(found) <= MAX_MARKS:
        shares = {value: _share(place, 0, len(found) - 1) for place, value in enumerate(found)}
        shown = found[:: -(-len(found) // MAX_MARKS)]
        return Axis(name, shares, [(shares[value], value or "(default)") for value in shown])
    low, high = min(numbers.values()), max(numbers.values())
    is_log = low > 0 and high / low > _LOG_ABOVE
    place = math.log if is_log else float
    shares = {value: _share(place(number), place(low), place(high)) for value, number in numbers.items()}
    # The values nearest to even places: a seed of 30.8 is none.
    near = dict.fromkeys(min(shares, key=lambda value: abs(shares[value] - at / _PLACES)) for at in range(_PLACES + 1))
    return Axis(name, shares, [(shares[value], value) for value in near])


def _parse(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _scale(low: float, high: float) -> list[tuple[float, str]]:
    """Numbers at both ends and between, evenly spaced."""
    if not high > low:
        return [(0.5, f"{low:.4g}")]
    shares = [place / _PLACES for place in range(_PLACES + 1)]
    return [(share, f"{low + (high - low) * share:.3g}") for share in shares]


Line = tuple[RankedRun, list[tuple[float, float]], float | None]
"""A run, its points, and where its value lies between the worst, 0, and the best, 1."""


def _lines(standings: Sequence[RankedRun], axes: list[Axis], xs: list[float], ends: tuple[float, float]) -> list[Line]:
    through: dict[tuple[int, float], list[int]] = defaultdict(list)
    for index, standing in enumerate(standings):
        for column, axis in enumerate(axes):
            through[column, axis.shares[standing.overrides.get(axis.name, "")]].append(index)
    first = next(standing.value for standing in standings if standing.value is not None)
    lines: list[Line] = []
    for index, standing in enumerate(standings):
        points = []
        for column, axis in enumerate(axes):
            share = axis.shares[standing.overrides.get(axis.name, "")]
            beside = through[column, share]
            spread = _share(beside.index(index), 0, len(beside) - 1) - 0.5
            points.append((xs[column], _height(share) + 2 * _SPREAD * spread))
        goodness = None
        if standing.value is not None:
            share = _share(standing.value, *ends)
            goodness = share if first == ends[1] else 1 - share
            points.append((xs[-1], _height(share)))
        lines.append((standing, points, goodness))
    return lines


def _height(share: float) -> float:
    return _BOTTOM - _SPREAD - (_BOTTOM - _TOP - 2 * _SPREAD) * share


def _draw_run(
    parent: Element,
    standing: RankedRun,
    metric: str,
    points: list[tuple[float, float]],
    share: float | None,
    *,
    is_best: bool,
) -> None:
    path = "M" + "L".join(f"{x:.0f},{y:.1f}" for x, y in points)
    kind = "run open" if share is None else "run best" if is_best else "run"
    style = {} if share is None else {"style": f"--share:{share:.0%}"}
    node = SubElement(parent, "path", {"d": path, "class": kind, **style})
    value = "no value" if standing.value is None else f"{standing.value:.6g}"
    swept = ", ".join(f"{key} {text}" for key, text in standing.overrides.items())
    SubElement(node, "title").text = f"run {standing.run}: {metric} {value}; {swept}; {standing.state}"


def _draw_axis(root: Element, x: float, axis: Axis, *, is_first: bool) -> None:
    foot, head = str(_BOTTOM), str(_TOP)
    SubElement(root, "line", {"x1": f"{x:.0f}", "x2": f"{x:.0f}", "y1": foot, "y2": head, "class": "axis"})
    name = SubElement(root, "text", {"x": f"{x:.0f}", "y": "18", "text-anchor": "middle", "class": "name"})
    _write(name, axis.name, axis.name if "/" in axis.name else axis.name.rpartition(".")[2])
    # Beside the axis, of the first one where no lines are.
    beside = {"x": f"{x - 8:.0f}", "text-anchor": "end"} if is_first else {"x": f"{x + 8:.0f}"}
    for share, text in axis.marks:
        short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        _write(SubElement(root, "text", {**beside, "y": f"{_height(share) + 4:.1f}"}), text, short)


def _write(node: Element, text: str, short: str) -> None:
    """The short text; where the whole is another, it is the tip."""
    node.text = short
    if short != text:
        SubElement(node, "title").text = text
