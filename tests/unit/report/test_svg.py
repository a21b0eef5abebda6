from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from slurm_rl.report.charts import MAX_POINTS, bin_points, build_charts, moving_mean
from slurm_rl.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Bar,
    Line,
    line_chart,
    nice_ticks,
    stacked_chart,
)

from .sample_run import make_row, make_rows


def test_a_line_fills_the_plot_area() -> None:
    svg = ElementTree.fromstring(line_chart([Line("a", [(0, 0.0), (5, 1.0), (10, 0.5)])]))
    (curve,) = svg.iter("polyline")
    left, right, bottom, top = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP
    middle = (left + right) / 2
    half = (top + bottom) / 2
    expected = f"{left:.1f},{bottom:.1f} {middle:.1f},{top:.1f} {right:.1f},{half:.1f}"
    assert curve.get("points") == expected
    assert [tip.text for tip in svg.iter("title")] == ["step 0\na 0", "step 5\na 1", "step 10\na 0.5"]


def test_tips_cover_the_width_without_gaps() -> None:
    svg = ElementTree.fromstring(line_chart([Line("a", [(0, 1.0), (10, 2.0)]), Line("b", [(4, 3.0)])]))
    tips = [rect for rect in svg.iter("rect") if rect.get("class") == "tip"]
    assert len(tips) == 3
    edges = [(float(tip.attrib["x"]), float(tip.attrib["x"]) + float(tip.attrib["width"])) for tip in tips]
    assert edges[0][0] == LEFT
    assert edges[-1][1] == pytest.approx(WIDTH - RIGHT, abs=0.2)
    assert edges[0][1] == pytest.approx(edges[1][0], abs=0.2)


@pytest.mark.parametrize("points", [[(3, 0.0)], [(3, 7.0)], [(1, -2.0), (2, -2.0)], [(1, 1e-9), (2, 3e9)]])
def test_flat_and_single_points_are_drawn_inside_the_frame(points: list[tuple[float, float]]) -> None:
    svg = line_chart([Line("a", points)])
    assert "nan" not in svg
    for point in re.findall(r'points="([^"]+)"', svg)[0].split():
        x, y = map(float, point.split(","))
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM


def test_stacked_bars_stand_on_each_other() -> None:
    svg = ElementTree.fromstring(stacked_chart(["a", "b", "none"], [Bar(1, [1.0, 3.0, 0.0]), Bar(2, [2.0, 2.0, 0.0])]))
    first, second, *rest = [rect for rect in svg.iter("rect") if rect.get("class") != "tip"]
    assert len(rest) == 2
    assert float(first.attrib["y"]) == pytest.approx(
        float(second.attrib["y"]) + float(second.attrib["height"]), abs=0.2
    )
    assert float(second.attrib["height"]) == pytest.approx(3 * float(first.attrib["height"]), abs=0.2)
    assert next(svg.iter("title")).text == "step 1\na 1 s\nb 3 s\nnone 0 s"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (-0.03, 0.02, [-0.03, -0.02, -0.01, 0.0, 0.01, 0.02]), (97, 99, None)],
)
def test_ticks_are_round_and_span_the_values(low: float, high: float, ticks: list[float] | None) -> None:
    found = nice_ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert ticks is None or found == ticks


def test_long_curves_are_binned_by_their_mean() -> None:
    binned = bin_points([(step, step % 2) for step in range(10 * MAX_POINTS)])
    assert binned == [(step, 0.5) for step in range(9, 10 * MAX_POINTS, 10)]


def test_the_moving_mean_shrinks_at_the_ends() -> None:
    assert moving_mean([(0, 0.0), (1, 3.0), (2, 6.0), (3, 6.0)], 1) == [(0, 1.5), (1, 3.0), (2, 5.0), (3, 6.0)]


def test_only_measured_metrics_get_a_chart() -> None:
    titles = [chart.title for chart in build_charts(make_rows())]
    assert titles == [
        "Reward",
        "Accuracy",
        "KL to the reference",
        "Warm-up loss",
        "Tokens a second",
        "Time of a step, seconds",
    ]
    assert list(build_charts([])) == []
    assert [chart.title for chart in build_charts([make_row(1, "grpo", **{"entropy/mean": 1.0})])] == ["Entropy"]


@pytest.mark.parametrize("values", [[4e-14, 9e-14], [1.0, 1.0 + 1e-15], [0.0, 0.0], [-3e-20, 5e-20]])
def test_curves_of_tiny_or_equal_values_have_axes(values: list[float]) -> None:
    assert "<svg" in line_chart([Line("x", list(enumerate(map(float, values))))])
