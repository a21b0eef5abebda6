"""What is known of a run apart from its metrics: name, state, model, time, and where its files are.

Its events too, in words, one line each; a kind that is not in the table is shown with its fields.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import yaml

from slurm_rl.run_dir.event_phrases import PHRASES
from slurm_rl.run_dir.jsonl import Row, read_rows
from slurm_rl.run_dir.run_dir import RunDir

LONGEST_VALUE = 300


def read_events(run: RunDir) -> list[Row]:
    """The events so far, oldest first; several nodes write them, each with its own delay."""
    return sorted(read_rows(run.events), key=lambda event: float(event.get("time", 0.0)))


def render_event(event: Row) -> str:
    """One line for a terminal: local time, what happened, its details.

    >>> render_event({"time": 0.0, "kind": "checkpoint/saved", "step": 40})[9:]
    'checkpoint saved: step 40'
    """
    clock = time.strftime("%H:%M:%S", time.localtime(float(event.get("time", 0.0))))
    return f"{clock} {describe_event(event)}"


def describe_event(event: Row) -> str:
    """The same line without the time."""
    kind = str(event.get("kind", "unknown"))
    fields = [(key, value) for key, value in event.items() if key not in ("time", "kind") and value != ""]
    details = ", ".join(f"{key} {_show(value)}" for key, value in fields)
    phrase = PHRASES.get(kind, kind)
    return f"{phrase}: {details}" if details else phrase


def _show(value: Any) -> str:
    """A value on one line; a cause may be a traceback of many, or hold bytes that move the cursor."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    line = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_VALUE else line[: LONGEST_VALUE - 1] + "…"


@dataclass(frozen=True, kw_only=True)
class RunMeta:
    """The header of a summary and of a report."""

    name: str
    """Name of the run directory."""
    state: str
    """queued, running, or how the last attempt ended; unknown before the first event."""
    model: str
    """The model the config names, or that one was built for the run."""
    attempts: int
    """How often the job started."""
    wall_s: float
    """Seconds, to the millisecond, in which the run held its nodes, over all attempts; waiting is left out."""
    rows: dict[str, int]
    """What became of the rows of the data (RowCounts); empty before they are loaded."""
    paths: dict[str, str]
    """What a user wants to open next, by name."""
    only_evaluates: bool = False
    """The run trains nothing: it measures evaluation sets."""


def collect_meta(run: RunDir) -> RunMeta:
    """Read what is there; a run that is still going, or died before its first step, gives less."""
    events = read_events(run)
    newest_row: Row = next(reversed(read_rows(run.metrics)), {})
    return RunMeta(
        name=run.path.name,
        state=find_state(events),
        model=find_model(read_config_text(run)),
        attempts=sum(event["kind"] == "attempt/started" for event in events),
        wall_s=round(compute_wall_s(events, last_stamp=float(newest_row.get("time/stamp", 0.0))), 3),
        rows=find_rows(events),
        paths=_paths(run),
        only_evaluates=only_evaluates(read_config_text(run)),
    )


def find_state(events: list[Row]) -> str:
    """The state the newest event leaves the run in."""
    states = {"job/submitted": "queued", "attempt/started": "running", "trainer/finished": "finished"}
    for event in reversed(events):
        if event["kind"] == "attempt/ended":
            return str(event.get("outcome", "ended"))
        if event["kind"] in states:
            return states[event["kind"]]
    return "unknown"


def find_rows(events: list[Row]) -> dict[str, int]:
    """The counts of the newest attempt that loaded its data."""
    found = next((event for event in reversed(events) if event["kind"] == "data/loaded"), {})
    return {key: value for key, value in found.items() if key not in ("time", "kind")}


def compute_wall_s(events: list[Row], *, last_stamp: float) -> float:
    """Sum of the attempts; one without an end (still going, or its node died) ends with the last sign of life."""
    total = 0.0
    started: float | None = None
    seen = 0.0
    for event in events:
        if event["kind"] == "attempt/started":
            total += 0.0 if started is None else seen - started
            started = event["time"]
        elif event["kind"] == "attempt/ended" and started is not None:
            total += event["time"] - started
            started = None
        seen = event["time"]
    return total if started is None else total + max(seen, last_stamp) - started


def find_model(config_text: str) -> str:
    """The model's path in the config, or the size of the one that was built."""
    config = _parse(config_text)
    if isinstance(config, dict) and config.get("external"):
        return str(config["external"].get("model") or f"of task={config.get('task')}")
    model = config.get("model") if isinstance(config, dict) else None
    if not isinstance(model, dict):
        return "unknown"
    if model.get("path"):
        return str(model["path"])
    tiny = model.get("tiny") or {}
    return f"built for this run ({tiny.get('num_layers', '?')} layers, width {tiny.get('hidden_size', '?')})"


def only_evaluates(config_text: str) -> bool:
    """Return whether the config has `eval.only=true`.

    >>> only_evaluates("eval: {only: true}"), only_evaluates("eval: [")
    (True, False)
    """
    config = _parse(config_text)
    return isinstance(config, dict) and isinstance(config.get("eval"), dict) and config["eval"].get("only") is True


def _parse(config_text: str) -> Any:
    """Return the parsed config; None if it is damaged."""
    try:
        return yaml.safe_load(config_text)
    except yaml.YAMLError:
        return None


def read_config_text(run: RunDir) -> str:
    """The text of config.yaml, or nothing."""
    return run.config.read_text(encoding="utf-8") if run.config.is_file() else ""


def _paths(run: RunDir) -> dict[str, str]:
    found = {"export": run.export, "tensorboard": run.tensorboard, "logs": run.attempts / "latest" / "logs"}
    there = {name: str(path) for name, path in found.items() if path.exists()}
    return {"run": str(run.path), "report": str(run.report), **there}


def format_seconds(seconds: float) -> str:
    """Seconds as a person says them.

    >>> format_seconds(3725), format_seconds(65.4), format_seconds(9.26)
    ('1 h 02 min', '1 min 05 s', '9.3 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
