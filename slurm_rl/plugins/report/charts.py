"""Charts of a report, drawn by pygal as inline SVG without scripts; page.html sets colors and fonts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from slurm_rl.config.tasks import STAGE_TITLES, TORCHRUN_TASKS
from slurm_rl.plugins.report.summary import PHASES, split_step
from slurm_rl.run_dir.jsonl import Row

if TYPE_CHECKING:
    import pygal

Point = tuple[float, float]
MAX_POINTS = 120
"""More points are binned, so that the report of a long run stays small."""
FEW_POINTS = 24
"""Up to this number, each point is marked."""
MAX_COMPARED_POINTS = 60
"""Maximum number of points of each of several curves in one chart."""
FONT_SIZE = 14
MAX_SHARED_LABEL = 14
"""Characters of a label in a legend with several columns; a longer label makes it one column."""
_NOT_SHOWN = {"defs", "desc", "script", "style"}
"""Elements of pygal's style sheet and script, which are removed."""


@dataclass(frozen=True)
class Curve:
    """A metric of one stage."""

    label: str
    key: str
    stage: str = "grpo"


LINE_CHARTS: dict[str, tuple[Curve, ...]] = {
    "Reward": (Curve("mean", "reward/mean"),),
    "Accuracy": (Curve("greedy", "accuracy/greedy", "eval"), Curve("sampled", "accuracy/sampled", "eval")),
    "KL to the reference": (Curve("KL", "kl/reference"),),
    "Entropy": (Curve("mean", "entropy/mean"),),
    "Groups with signal, share": (Curve("with signal", "reward/groups_with_signal"),),
    "Completion length, tokens": (
        Curve("mean", "completion/length_mean"),
        Curve("longest", "completion/length_max"),
    ),
    "Truncated completions, share": (Curve("truncated", "completion/truncated"),),
    "Gradient norm": tuple(Curve(name, "policy/grad_norm", task) for task, name in STAGE_TITLES.items()),
    "Learning rate": tuple(Curve(name, "policy/lr", task) for task, name in STAGE_TITLES.items()),
    "Clipped tokens, share": (Curve("clipped", "policy/clip_fraction"),),
    "Sampler against policy, largest logprob gap": (Curve("largest", "mismatch/max"),),
    "Sampler against policy, KL": (Curve("KL", "mismatch/kl"),),
    "Warm-up loss": (Curve("loss", "policy/loss", "warmup"),),
    "GRPO loss": (Curve("loss", "policy/loss"),),
    "Critic: explained variance": (Curve("explained", "critic/explained_variance"),),
    "Critic loss": (Curve("loss", "critic/loss"),),
    "KL coefficient": (Curve("coefficient", "kl/coefficient"),),
    "Loss": tuple(Curve(STAGE_TITLES[task], "policy/loss", task) for task in TORCHRUN_TASKS),
    "Pairs right, share": (Curve("RM", "rm/accuracy", "rm"), Curve("DPO", "dpo/accuracy", "dpo")),
    "Implicit reward": (Curve("chosen", "dpo/chosen_reward", "dpo"), Curve("rejected", "dpo/rejected_reward", "dpo")),
    "Score": (Curve("chosen", "rm/chosen_score", "rm"), Curve("rejected", "rm/rejected_score", "rm")),
    "Held-out loss": (Curve("loss", "eval/loss", "eval"),),
    "Held-out accuracy": (
        Curve("exact match", "eval/exact_match", "eval"),
        Curve("pairs right", "eval/accuracy", "eval"),
    ),
    "Tokens a second": tuple(Curve(name, "time/tokens_per_s", task) for task, name in STAGE_TITLES.items()),
}
"""Title -> curves of a chart; it is drawn if any of them has values."""
_NAMED = ((re.compile(r"score/(.+)"), "Score {}", "grpo"), (re.compile(r"set/(.+/avg@\d+)"), "Set {}", "eval"))
"""Pattern of keys with user-defined names, title of their charts, and stage of their rows."""


def find_charts(rows: Iterable[Row]) -> dict[str, tuple[Curve, ...]]:
    """Return LINE_CHARTS with one more chart for each score and each evaluation set that the rows have."""
    keys = sorted({key for row in rows for key in row})
    found = {
        title.format(match[1]): (Curve("mean", key, stage),)
        for pattern, title, stage in _NAMED
        for key in keys
        if (match := pattern.fullmatch(key))
    }
    first = dict(itertools.islice(LINE_CHARTS.items(), 2))
    return {**first, **found, **LINE_CHARTS}


def build_charts(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Yield (title, SVG) of the charts with values."""
    for title, shown in find_charts(rows).items():
        curves = {curve.label: points for curve in shown if (points := select_points(rows, curve))}
        if curves:
            yield title, draw_lines(curves)
    timed = [row for row in rows if row["stage"] == "grpo" and "time/step_s" in row]
    if timed:
        yield "Time of a step, seconds", _draw_phases(timed)


def compare_runs(runs: Mapping[str, list[Row]]) -> Iterator[tuple[str, str]]:
    """Yield (title, SVG) of each curve that a run has, all runs in one chart."""
    for title, shown in find_charts(row for rows in runs.values() for row in rows).items():
        for curve in shown:
            # A run without values stays, so that every run keeps its color.
            curves = {name: select_points(rows, curve) for name, rows in runs.items()}
            if any(curves.values()):
                yield title if len(shown) == 1 else f"{title}, {curve.label}", draw_lines(curves)


def select_points(rows: list[Row], curve: Curve) -> list[Point]:
    """Return (step, value) of each row that has the key."""
    return [(row["step"], row[curve.key]) for row in rows if row["stage"] == curve.stage and curve.key in row]


def bin_points(points: list[Point], most: int = MAX_POINTS) -> list[Point]:
    """Return at most `most` points: the mean of each group of neighbors, at its last step."""
    size = -(-len(points) // most)
    bins = [points[start : start + size] for start in range(0, len(points), max(1, size))]
    return [(part[-1][0], fmean(y for _, y in part)) for part in bins]


def format_number(value: float) -> str:
    """Return a number with at most six digits.

    >>> [format_number(v) for v in (0, 2500000.0, 0.25, 0.1 + 0.2, 0.000012)]
    ['0', '2,500,000', '0.25', '0.3', '1.2e-05']
    """
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"


def draw_lines(curves: Mapping[str, list[Point]]) -> str:
    """Draw curves by label over the step."""
    import pygal

    most = MAX_POINTS if len(curves) < 3 else MAX_COMPARED_POINTS
    binned = {label: bin_points(points, most) for label, points in curves.items()}
    is_long = max(map(len, binned.values())) > FEW_POINTS
    values = [value for points in binned.values() for _, value in points]
    starts_at_zero = 0 < min(values) < max(values) / 2
    chart = pygal.XY(**_look("long" if is_long else "marked", list(binned)), dots_size=4, include_x_axis=starts_at_zero)
    for label, points in binned.items():
        chart.add(label, [{"value": (x, y), "tooltip": _tip(x, label, y)} for x, y in points])
    return _render(chart)


def _draw_phases(rows: list[Row]) -> str:
    import pygal

    phases = [*PHASES, "other"]
    chart = pygal.StackedBar(**_look("stacked", phases), x_labels_major_count=6, show_minor_x_labels=False)
    steps = [split_step(row) for row in rows]
    for phase in phases:
        points = bin_points([(row["step"], step[phase]) for row, step in zip(rows, steps, strict=True)])
        chart.x_labels = [format_number(x) for x, _ in points]
        chart.add(phase, [{"value": y, "tooltip": f"{_tip(x, phase, y)} s"} for x, y in points])
    return _render(chart)


def _tip(step: float, label: str, value: float) -> str:
    return f"step {format_number(step)}: {label} {format_number(value)}"


def _look(kind: str, labels: Sequence[str]) -> dict[str, Any]:
    from pygal.style import Style

    has_long = max(map(len, labels)) > MAX_SHARED_LABEL
    columns = 1 if has_long else 3
    return {
        # page.html sets the fonts; pygal needs their size for the layout.
        "style": Style(label_font_size=FONT_SIZE, major_label_font_size=FONT_SIZE, legend_font_size=FONT_SIZE),
        "classes": ["chart", kind],
        # The width of a card, so that letters have the size of the layout.
        "width": 430,
        "height": 230 + (24 * -(-len(labels) // columns) if len(labels) > 1 else 0),
        "margin": 6,
        "margin_right": 22,
        "css": [],
        "js": [],
        "show_legend": len(labels) > 1,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": 1 if has_long else None,
        "truncate_legend": -1,
        "min_scale": 3,
        "max_scale": 6,
        "truncate_label": -1,
        "disable_xml_declaration": True,
        "value_formatter": format_number,
        "x_value_formatter": format_number,
    }


def _render(chart: pygal.Graph) -> str:
    chart.add_xml_filter(_strip)
    svg: str = chart.render(is_unicode=True)
    return svg


def _strip(root: Element) -> Element:
    """Remove everything except the drawing and its tooltips."""
    del root.attrib["id"]
    root.attrib.pop("xmlns", None)
    for parent in list(root.iter()):
        for child in list(parent):
            is_head = parent is root and child.tag == "title"
            if not isinstance(child.tag, str) or child.tag in _NOT_SHOWN or is_head:
                parent.remove(child)
    return root
