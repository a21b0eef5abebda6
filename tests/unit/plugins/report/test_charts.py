import re
from xml.etree import ElementTree

import pytest

from slurm_rl.plugins.report.charts import (
    MAX_POINTS,
    bin_points,
    build_charts,
    draw_lines,
)

from .sample_run import make_row, make_rows


def tips(svg: str) -> list[str]:
    """Return tooltips of the data points, without those of the guides."""
    return [tip.text or "" for dot in ElementTree.fromstring(svg).findall(".//g[@class='dots']") for tip in dot[:1]]


def test_points_show_values() -> None:
    svg = draw_lines({"a": [(0, 0.0), (5, 1.0)], "b": [(5, 0.1 + 0.2)]})
    assert tips(svg) == ["step 0: a 0", "step 5: a 1", "step 5: b 0.3"]


@pytest.mark.parametrize("num", [2, 3, 4, 6])
def test_several_curves_have_legend(num: int) -> None:
    svg = ElementTree.fromstring(draw_lines({f"run {n}": [(1, 0.0), (2, n)] for n in range(num)}))
    (legends,) = svg.findall(".//g[@class='legends']")
    top = float(re.findall(r"[\d.]+", legends.attrib["transform"])[1])
    texts = list(legends.iter("text"))
    assert [text.text for text in texts] == [f"run {n}" for n in range(num)]
    height = float(svg.attrib["viewBox"].split()[3])
    assert max(top + float(text.attrib["y"]) for text in texts) < height


def test_long_curves_are_averaged_in_bins() -> None:
    binned = bin_points([(step, step % 2) for step in range(10 * MAX_POINTS)])
    assert binned == [(step, 0.5) for step in range(9, 10 * MAX_POINTS, 10)]


def test_only_measured_metrics_get_chart() -> None:
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
    # Points, and the labels of the axis.
    assert svg.count("<circle") == len(values) and svg.count("<text") >= 2
