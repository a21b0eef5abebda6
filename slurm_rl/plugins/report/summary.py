"""Results of a run as one small dict: summary.json, and the table printed at its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slurm_rl.config.tasks import STAGE_TITLES
from slurm_rl.plugins.goodput.read import read_ledger, read_mfu
from slurm_rl.plugins.goodput.render import render_line
from slurm_rl.run_dir.divergence import find_divergence
from slurm_rl.run_dir.eval_sets import SetResult, describe_sets, read_metrics, read_results
from slurm_rl.run_dir.event_text import RunMeta, collect_meta, format_seconds
from slurm_rl.run_dir.jsonl import Row
from slurm_rl.run_dir.judge_total import describe_judge, read_judge_total
from slurm_rl.run_dir.run_dir import RunDir, write_json

if TYPE_CHECKING:
    from rich.table import Table

PHASES = ("rollout", "reward", "train", "sync", "save")
EVALUATION = "eval"
"""Stage of a run without training."""


def build_summary(rows: list[Row], meta: RunMeta) -> dict[str, Any]:
    """Summarize the rows of metrics.jsonl; missing values are null.

    `accuracy.before` is the last evaluation before the first GRPO step (after a warm-up), `accuracy.after` the last one
    after it; likewise for each set in `sets`, where a run without training has only `after`. `tokens_per_s` is end to
    end: sampled and trained tokens, each counted once, over the whole time of the GRPO steps.
    """
    default = EVALUATION if meta.only_evaluates else "grpo"
    stage = next((row["stage"] for row in rows if row["stage"] in STAGE_TITLES), default)
    main = _of_stage(rows, stage)
    before, after = split_evaluations(rows)
    rewards = [row["reward/mean"] for row in main if "reward/mean" in row]
    return {
        **{key: value for key, value in asdict(meta).items() if key != "only_evaluates"},
        "warmup_steps": len(_of_stage(rows, "warmup")),
        "stage": stage,
        "steps": len(main),
        "accuracy": {"before": _accuracy(before), "after": _accuracy(after)},
        "held_out": {"before": _held_out(before), "after": _held_out(after)},
        "sets": _sets(rows, only_evaluates=meta.only_evaluates),
        "warnings": find_divergence(rows, meta.rows.get("held_out", 0)),
        "reward": {"first": rewards[0] if rewards else None, "last": rewards[-1] if rewards else None},
        "packed": all(row.get("policy/packed", 1.0) for row in main),
        "tokens_per_s": _tokens_per_s(main),
        "time": sum_phases(rows),
    }


def split_evaluations(rows: list[Row]) -> tuple[Row | None, Row | None]:
    """Return the last evaluation before the main stage and the last one after; rows are in the order of logging."""
    before, after = (_of_stage(part, "eval") for part in _split(rows))
    return (before[-1] if before else None), (after[-1] if after else None)


def _split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows before the first of the main stage, and the others."""
    ahead = list(itertools.takewhile(lambda row: row["stage"] not in STAGE_TITLES, rows))
    return ahead, rows[len(ahead) :]


def _sets(rows: list[Row], *, only_evaluates: bool) -> dict[str, dict[str, SetResult | None]]:
    """Return the last result of each set before the main stage, and the last one after it began."""
    before, after = map(read_results, ([], rows) if only_evaluates else _split(rows))
    return {
        name: {"before": before.get(name, [None])[-1], "after": after.get(name, [None])[-1]}
        for name in dict.fromkeys((*before, *after))
    }


def split_step(row: Row) -> dict[str, float]:
    """Return the seconds of one step by phase; `other` is the unmeasured rest."""
    phases = {phase: float(row.get(f"time/{phase}_s", 0.0)) for phase in PHASES}
    return {**phases, "other": max(0.0, float(row.get("time/step_s", 0.0)) - sum(phases.values()))}


def sum_phases(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return seconds and share by phase of GRPO, with warm-up and evaluation as one phase each."""
    seconds = dict.fromkeys(("warmup", "eval", *PHASES, "other"), 0.0)
    for row in rows:
        parts = split_step(row) if row["stage"] == "grpo" else {row["stage"]: float(row.get("time/step_s", 0.0))}
        for phase, spent in parts.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    total = sum(seconds.values())
    return {
        phase: {"seconds": round(spent, 3), "share": round(spent / total, 4)}
        for phase, spent in seconds.items()
        if spent > 0
    }


def summarize_run(run: RunDir) -> dict[str, Any]:
    """Return the summary of the current run directory."""
    summary = build_summary(read_metrics(run), collect_meta(run))
    return {**summary, "judge": read_judge_total(run), "goodput": summarize_goodput(run)}


def summarize_goodput(run: RunDir) -> dict[str, Any] | None:
    """Return the ledger with its sentence and MFU; None before the first attempt."""
    ledger = read_ledger(run)
    if ledger is None:
        return None
    mfu = read_mfu(run, ledger)
    return {
        "sentence": render_line(ledger),
        "mfu": None if mfu.value is None else round(mfu.value, 4),
        **ledger.to_json(),
    }


def write_summary(run: RunDir) -> dict[str, Any]:
    """Write summary.json and return its content."""
    summary = summarize_run(run)
    write_json(run.summary, summary)
    return summary


def render_summary(summary: dict[str, Any]) -> Table:
    """Return the table that ends a run in the foreground."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{summary['name']}: {summary['state']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in list_results(summary):
        # Text: a bracket in a path is not markup.
        table.add_row(name, Text(value))
    return table


def print_summary(summary: dict[str, Any]) -> None:
    from rich.console import Console

    Console().print(render_summary(summary))


def list_results(summary: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield name and text of each result."""
    before, after = summary["accuracy"]["before"], summary["accuracy"]["after"]
    yield "model", summary["model"]
    if summary["stage"] != EVALUATION:
        has_warmup = summary["warmup_steps"] or summary["stage"] == "grpo"
        warmup = f"{summary['warmup_steps']} warm-up, " if has_warmup else ""
        yield "steps", f"{warmup}{summary['steps']} {STAGE_TITLES[summary['stage']]}"
    if text := describe_data(summary):
        yield "rows", text
    for name, result in describe_sets(summary["sets"]):
        yield f"set {name}", result
    for name, value in (summary["held_out"]["after"] or {}).items():
        first = (summary["held_out"]["before"] or {}).get(name)
        yield (
            f"held-out {name.replace('_', ' ')}",
            f"{'not measured' if first is None else f'{first:.3f}'} -> {value:.3f}",
        )
    for kind in ("greedy", "sampled"):
        if any(side and kind in side for side in (before, after)):
            yield f"accuracy, {kind}", f"{_percent(before, kind)} -> {_percent(after, kind)}"
    for warning in summary["warnings"]:
        yield "warning", warning
    if summary["reward"]["last"] is not None:
        yield "reward", f"{summary['reward']['first']:.3f} -> {summary['reward']['last']:.3f}"
    if summary.get("judge"):
        yield "judge", describe_judge(summary["judge"])
    if not summary["packed"]:
        yield "rows", "of one sequence each: this model does not keep those of a packed row apart"
    if summary["tokens_per_s"] is not None:
        yield "tokens/s", f"{summary['tokens_per_s']:,.0f}"
    yield "time", format_seconds(summary["wall_s"])
    if summary["time"]:
        yield "", ", ".join(f"{phase} {part['share']:.0%}" for phase, part in summary["time"].items())
    if summary.get("goodput"):
        yield "goodput", summary["goodput"]["sentence"]
    yield from summary["paths"].items()


def describe_data(summary: dict[str, Any]) -> str:
    """Return the use of the rows of a run's data; "" before they are loaded and for a run without training.

    >>> rows = {"train": 9500, "held_out": 0, "overlapping": 0, "overlong": 3}
    >>> describe_data({"rows": rows, "stage": "grpo", "sets": {}})
    '9,500 to train on, none held out: nothing is evaluated, 3 left out as too long'
    """
    rows = summary["rows"]
    if not rows or summary["stage"] == EVALUATION:
        return ""
    parts = [f"{rows['train']:,} to train on"]
    nothing = "none held out" if summary["sets"] else "none held out: nothing is evaluated"
    parts.append(f"{rows['held_out']:,} held out" if rows["held_out"] else nothing)
    if rows["overlapping"]:
        parts.append(f"{rows['overlapping']:,} not trained on, since their prompts are held out")
    if rows["overlong"]:
        parts.append(f"{rows['overlong']:,} left out as too long")
    return ", ".join(parts)


def _percent(side: Row | None, kind: str) -> str:
    return f"{side[kind]:.1%}" if side and kind in side else "not measured"


def _accuracy(row: Row | None) -> Row | None:
    if row is None:
        return None
    measured = {kind: row[f"accuracy/{kind}"] for kind in ("sampled", "greedy") if f"accuracy/{kind}" in row}
    return {"step": row["step"], **measured}


def _held_out(row: Row | None) -> Row | None:
    """Return the measurements of a supervised task by name; None for an evaluation of completions."""
    found = {name.removeprefix("eval/"): value for name, value in (row or {}).items() if name.startswith("eval/")}
    return found or None


def _tokens_per_s(rows: list[Row]) -> float | None:
    timed = [row for row in rows if "tokens/trained" in row and "time/step_s" in row]
    seconds = sum(row["time/step_s"] for row in timed)
    return round(sum(row["tokens/trained"] for row in timed) / seconds, 3) if seconds else None


def _of_stage(rows: list[Row], stage: str) -> list[Row]:
    return [row for row in rows if row["stage"] == stage]
