"""Which charts a report shows, and how rows of metrics become their curves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from slurm_rl.jsonl import Row
from slurm_rl.report.summary import MAIN_STAGES, PHASES, split_step
from slurm_rl.report.svg import Bar, Line, Point, line_chart, stacked_chart

MAX_POINTS = 240
"""More than this is binned: a report of a long run stays small, and each tip wide enough to hit."""


@dataclass(frozen=True)
class Curve:
    """A key of the rows, in one stage."""

    label: str
    key: str
    stage: str = "grpo"


@dataclass(frozen=True)
class Chart:
    """A drawn chart: its title, its legend as (colour, label), and the SVG."""

    title: str
    legend: list[tuple[int, str]]
    svg: str


@dataclass(frozen=True)
class LineSpec:
    """A line chart to draw when any of its curves has values."""

    title: str
    curves: tuple[Curve, ...]
    smooth: bool = True
    """Show the moving mean, with the raw values pale behind it."""


_SUPERVISED = ("sft", "rm", "dpo")
LINE_CHARTS = (
    LineSpec("Reward", (Curve("mean", "reward/mean"),)),
    LineSpec(
        "Accuracy",
        (Curve("greedy", "accuracy/greedy", "eval"), Curve("sampled", "accuracy/sampled", "eval")),
        smooth=False,
    ),
    LineSpec("KL to the reference", (Curve("KL", "kl/reference"),)),
    LineSpec("Entropy", (Curve("mean", "entropy/mean"),)),
    LineSpec("Completion length, tokens", (Curve("mean", "completion/length_mean"),)),
    LineSpec("Truncated completions, share", (Curve("truncated", "completion/truncated"),)),
    LineSpec("Gradient norm", (Curve("norm", "policy/grad_norm"),)),
    LineSpec("Clipped tokens, share", (Curve("clipped", "policy/clip_fraction"),)),
    LineSpec("Sampler against policy, largest logprob gap", (Curve("largest", "mismatch/max"),)),
    LineSpec("Sampler against policy, KL", (Curve("KL", "mismatch/kl"),)),
    LineSpec("Warm-up loss", (Curve("loss", "policy/loss", "warmup"),)),
    LineSpec("GRPO loss", (Curve("loss", "policy/loss"),)),
    LineSpec("Critic: explained variance", (Curve("explained", "critic/explained_variance"),)),
    LineSpec("Critic loss", (Curve("loss", "critic/loss"),)),
    LineSpec("KL coefficient", (Curve("coefficient", "kl/coefficient"),)),
    LineSpec("Loss", tuple(Curve(MAIN_STAGES[task], "policy/loss", task) for task in _SUPERVISED)),
    LineSpec("Held-out loss", (Curve("loss", "eval/loss", "eval"),), smooth=False),
    LineSpec(
        "Held-out accuracy",
        (Curve("exact match", "eval/exact_match", "eval"), Curve("pairs right", "eval/accuracy", "eval")),
        smooth=False,
    ),
    LineSpec("Tokens a second", tuple(Curve("tokens/s", "time/tokens_per_s", stage) for stage in MAIN_STAGES)),
)


def build_charts(rows: list[Row]) -> Iterator[Chart]:
    """The charts for which there are values."""
    for spec in LINE_CHARTS:
        curves = [(curve.label, select_points(rows, curve)) for curve in spec.curves]
        if any(points for _, points in curves):
            yield _draw_lines(spec, curves)
    timed = [row for row in rows if row["stage"] == "grpo" and "time/step_s" in row]
    if timed:
        yield _draw_phases(timed)


def select_points(rows: list[Row], curve: Curve) -> list[Point]:
    """(step, value) of each row that has the key."""
    return [(row["step"], row[curve.key]) for row in rows if row["stage"] == curve.stage and curve.key in row]


def bin_points(points: list[Point]) -> list[Point]:
    """At most MAX_POINTS points: the mean of each run of neighbours, at its last step."""
    size = -(-len(points) // MAX_POINTS)
    bins = [points[start : start + size] for start in range(0, len(points), max(1, size))]
    return [(part[-1][0], fmean(y for _, y in part)) for part in bins]


def moving_mean(points: list[Point], half_width: int) -> list[Point]:
    """The mean of each point and `half_width` neighbours on either side, fewer at the ends."""
    smoothed = []
    for index, (x, _) in enumerate(points):
        near = points[max(0, index - half_width) : index + half_width + 1]
        smoothed.append((x, fmean(y for _, y in near)))
    return smoothed


def _draw_lines(spec: LineSpec, curves: list[tuple[str, list[Point]]]) -> Chart:
    lines: list[Line] = []
    for color, (label, points) in enumerate(curves):
        lines += _lines(label, bin_points(points), color, spec.smooth) if points else []
    legend = [(color, label) for color, (label, points) in enumerate(curves) if points]
    return Chart(spec.title, legend if len(legend) > 1 else [], line_chart(lines))


def _lines(label: str, points: list[Point], color: int, smooth: bool) -> list[Line]:
    half_width = len(points) // 25
    if not smooth or half_width == 0:
        return [Line(label, points, color, dots=not smooth)]
    return [Line(label, points, color, faint=True), Line("smoothed", moving_mean(points, half_width), color)]


def _draw_phases(rows: list[Row]) -> Chart:
    phases = [*PHASES, "other"]
    steps = [split_step(row) for row in rows]
    curves = [
        bin_points([(row["step"], step[phase]) for row, step in zip(rows, steps, strict=True)]) for phase in phases
    ]
    bars = [Bar(column[0][0], [seconds for _, seconds in column]) for column in zip(*curves, strict=True)]
    return Chart("Time of a step, seconds", list(enumerate(phases)), stacked_chart(phases, bars))
