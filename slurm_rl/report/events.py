"""What happened to a run, in words: one line an event.

A kind that is not in the table is shown with its fields, so a new event needs no change here.
"""

from __future__ import annotations

import time
from typing import Any

from slurm_rl.jsonl import Row, read_rows
from slurm_rl.run_dir import RunDir

PHRASES: dict[str, str] = {
    "job/submitted": "job submitted",
    "attempt/started": "attempt started",
    "node/started": "node started",
    "ray/head_ready": "Ray head is up",
    "torchrun/started": "torchrun started on the head node",
    "ray/cluster_ready": "Ray cluster is complete",
    "engine/ready": "rollout engine is ready",
    "reward/sandbox": "code of completions is confined",
    "external/started": "external trainer started",
    "data/loaded": "rows loaded",
    "trainer/started": "trainer started",
    "trainer/not_packed": "one sequence a row",
    "trainer/resumed": "trainer resumed from its checkpoint",
    "checkpoint/saved": "checkpoint saved",
    "eval/done": "evaluation done",
    "trainer/finished": "trainer finished",
    "attempt/ended": "attempt ended",
    "wandb/started": "Weights & Biases is on",
    "wandb/offline": "Weights & Biases keeps the run on disk",
    "wandb/failed": "Weights & Biases stopped",
}

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
    details = ", ".join(f"{key} {_show(value)}" for key, value in event.items() if key not in ("time", "kind"))
    phrase = PHRASES.get(kind, kind)
    return f"{phrase}: {details}" if details else phrase


def _show(value: Any) -> str:
    """A value on one line; a cause may be a traceback of many, or hold bytes that move the cursor."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    line = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_VALUE else line[: LONGEST_VALUE - 1] + "…"
