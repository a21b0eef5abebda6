"""Choose the charts of a report and turn rows of metrics into points; svg.py draws them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.config.tasks import STAGE_TITLES, TORCHRUN_TASKS
from slurm_rl.plugins.report.summary import PHASES, split_step
from slurm_rl.plugins.report.svg import MAX_COMPARED_POINTS, Point, draw_lines, draw_stacked
from slurm_rl.run_dir.jsonl import Row


@dataclass(frozen=True)
class Curve:
    """A key of the rows of one stage."""

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
"""Title -> curves of a chart; charts without values are omitted."""
_NAMED = ((re.compile(r"score/(.+)"), "Score {}", "grpo"), (re.compile(r"set/(.+/avg@\d+)"), "Set {}", "eval"))
"""Pattern of keys with a name of the user, title of the chart, and stage of the rows."""


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
    """Yield title and SVG of each chart that has values."""
    for title, shown in find_charts(rows).items():
        curves = {curve.label: points for curve in shown if (points := select_points(rows, curve))}
        if curves:
            yield title, draw_lines(curves)
    timed = [row for row in rows if row["stage"] == "grpo" and "time/step_s" in row]
    if timed:
        steps = [split_step(row) for row in timed]
        phases = {
            phase: [(float(row["step"]), step[phase]) for row, step in zip(timed, steps, strict=True)]
            for phase in (*PHASES, "other")
        }
        yield "Time of a step, seconds", draw_stacked(phases, "s")


def compare_runs(named: Mapping[str, list[Row]], others: Sequence[list[Row]] = ()) -> Iterator[tuple[str, str]]:
    """Yield title and SVG of each curve, with all runs in one chart.

    Args:
        others: rows of the runs to draw in grey behind the named ones.
    """
    for title, shown in find_charts(row for rows in named.values() for row in rows).items():
        for curve in shown:
            # Runs without values stay, so that each run keeps its color.
            curves = {name: select_points(rows, curve) for name, rows in named.items()}
            if any(curves.values()):
                pale = [select_points(rows, curve) for rows in others]
                yield title if len(shown) == 1 else f"{title}, {curve.label}", draw_lines(curves, pale)


def thin_rows(rows: list[Row]) -> list[Row]:
    """Return at most MAX_COMPARED_POINTS rows per stage, evenly spaced."""
    stages: dict[str, list[Row]] = {}
    for row in rows:
        stages.setdefault(row["stage"], []).append(row)
    return [row for those in stages.values() for row in those[:: -(-len(those) // MAX_COMPARED_POINTS)]]


def select_points(rows: list[Row], curve: Curve) -> list[Point]:
    """Return step and value of each row that has the key."""
    return [(row["step"], row[curve.key]) for row in rows if row["stage"] == curve.stage and curve.key in row]
