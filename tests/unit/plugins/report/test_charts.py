from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from slurm_rl.plugins.report.charts import build_charts, thin_rows
from slurm_rl.plugins.report.svg import FEW_POINTS, MAX_POINTS, bin_points, draw_lines, draw_stacked, moving_mean

from .sample_run import make_row, make_rows


def tips(svg: str) -> list[str]:
    """Return the tips of all points."""
    return [tip.text or "" for tip in ElementTree.fromstring(svg).findall("circle/title")]


def lines(svg: str) -> list[str]:
    """Return the classes of all curves in drawing order."""
    return [
        path.get("class", "") for path in ElementTree.fromstring(svg).iter("path") if "rule" not in path.attrib["class"]
    ]


def test_draw_lines_gives_every_point_a_tip() -> None:
    svg = draw_lines({"a": [(0, 0.0), (5, 1.0)], "b": [(5, 0.1 + 0.2)]})
    assert tips(svg) == ["step 0: a 0", "step 5: a 1", "step 5: b 0.3"]


@pytest.mark.parametrize("num", [2, 3, 4, 6])
def test_draw_lines_names_several_curves_below_the_chart(num: int) -> None:
    svg = ElementTree.fromstring(draw_lines({f"run {n}": [(1, 0.0), (2, n)] for n in range(num)}))
    texts = svg.findall("text[@class='legend']")
    assert [text.text for text in texts] == [f"run {n}" for n in range(num)]
    height = float(svg.attrib["viewBox"].split()[3])
    assert max(float(text.attrib["y"]) for text in texts) < height


def test_draw_lines_keeps_markup_in_labels_as_text() -> None:
    svg = ElementTree.fromstring(draw_lines({"<script>": [(1, 0.0)], "b": [(1, 0.0)]}))
    assert {node.tag for node in svg.iter()} <= {"svg", "path", "circle", "title", "text", "rect"}
    assert "<script>" in [text.text for text in svg.iter("text")]


def test_draw_lines_draws_other_runs_behind_the_named_ones() -> None:
    named = {f"run {n}": [(1.0, float(n)), (2.0, float(n))] for n in range(3)}
    diverged = [(1.0, 1.0), (2.0, 1e9)]
    svg = draw_lines(named, [[(1.0, 0.5), (2.0, 1.5)], diverged])
    assert lines(svg) == ["line others"] * 2 + [f"line color-{n}" for n in range(3)]
    assert tips(svg) == [f"step {step}: run {n} {n}" for n in range(3) for step in (1, 2)]
    # A run that diverged does not flatten the others.
    texts = [text.text or "" for text in ElementTree.fromstring(svg).iter("text")]
    assert not any("1,000,000,000" in text for text in texts)
    assert "others" in texts


def test_draw_stacked_piles_the_parts_of_a_step() -> None:
    svg = ElementTree.fromstring(draw_stacked({"a": [(1.0, 1.0), (2.0, 0.0)], "b": [(1.0, 3.0), (2.0, 2.0)]}, "s"))
    bars = [bar for bar in svg.findall("rect") if len(bar)]
    assert [bar[0].text for bar in bars] == ["step 1: a 1 s", "step 2: a 0 s", "step 1: b 3 s", "step 2: b 2 s"]
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights[2] == pytest.approx(3 * heights[0], abs=0.3) and heights[1] == 0
    assert float(bars[2].attrib["y"]) + heights[2] == pytest.approx(float(bars[0].attrib["y"]), abs=0.2)


def test_pale_rows_are_few_of_each_stage() -> None:
    rows = [make_row(step, stage) for step in range(200) for stage in ("grpo", "eval")]
    thin = thin_rows(rows)
    assert len(thin) == 2 * 50 and {row["stage"] for row in thin} == {"grpo", "eval"}


def test_a_long_curve_alone_keeps_its_values_behind_its_mean() -> None:
    points = [(float(step), float(step % 2)) for step in range(FEW_POINTS + 1)]
    alone, two = draw_lines({"a": points}), draw_lines({"a": points, "b": points})
    assert len(tips(alone)) == len(points) and set(tips(alone)) >= {"step 0: a 0", "step 1: a 1"}
    assert lines(alone) == ["line color-0 raw", "line color-0"] and lines(two) == ["line color-0", "line color-1"]
    assert "step 1: a 1" not in tips(two)


def test_long_curves_are_binned_by_their_mean() -> None:
    binned = bin_points([(step, step % 2) for step in range(10 * MAX_POINTS)])
    assert binned == [(step, 0.5) for step in range(9, 10 * MAX_POINTS, 10)]


def test_the_moving_mean_shrinks_at_the_ends() -> None:
    assert moving_mean([(0, 0.0), (1, 3.0), (2, 6.0), (3, 6.0)], 1) == [(0, 1.5), (1, 3.0), (2, 5.0), (3, 6.0)]


def test_only_measured_metrics_get_a_chart() -> None:
    titles = [title for title, _ in build_charts(make_rows())]
    assert titles == [
        "Reward",
        "Accuracy",
        "KL to the reference",
        "Warm-up loss",
        "Tokens a second",
        "Time of a step, seconds",
    ]
    assert list(build_charts([])) == []
    assert [title for title, _ in build_charts([make_row(1, "grpo", **{"entropy/mean": 1.0})])] == ["Entropy"]


@pytest.mark.parametrize(
    "values",
    [[0.0], [7.0], [-2.0, -2.0], [1e-9, 3e9], [4e-14, 9e-14], [1.0, 1.0 + 1e-15], [0.0, 0.0], [-3e-20, 5e-20]],
)
def test_single_tiny_and_equal_values_are_drawn(values: list[float]) -> None:
    svg = draw_lines({"x": list(enumerate(map(float, values)))})
    assert not re.search(r"nan|inf\b", svg) and len(tips(svg)) == len(values)
    # Points and the numbers at the axis.
    assert svg.count("<circle") == len(values) and svg.count("<text") >= 2
