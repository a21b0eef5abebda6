"""Events and rows of synthetic runs."""

from __future__ import annotations

from typing import Any

from slurm_rl.run_dir.jsonl import Row


class Story:
    """A run on two nodes of 8 GPUs by default; times are in seconds."""

    def __init__(self, **held: Any) -> None:
        self.events: list[Row] = []
        self.steps: dict[int, list[Row]] = {}
        self.held = held or {"nodes": 2, "gpus": 16}
        self.attempt = 0

    def event(self, time: float, kind: str, **fields: Any) -> Story:
        self.events.append({"time": time, "kind": kind, **fields})
        return self

    def start(self, time: float, *, job: str = "7", restarts: int = 0, **fields: Any) -> Story:
        self.attempt += 1
        named = {"attempt": self.attempt, "job": job, "slurm_restarts": restarts, **self.held}
        return self.event(time, "attempt/started", **named, **fields)

    def row(self, start: float, seconds: float, step: int, stage: str = "grpo", **phases: float) -> Story:
        row = {"step": step, "stage": stage, "start": start, "seconds": seconds, "phases": phases}
        self.steps.setdefault(self.attempt, []).append(row)
        return self

    def rows(self, start: float, first: int, last: int, seconds: float = 10.0) -> Story:
        """Add consecutive steps."""
        for place, step in enumerate(range(first, last + 1)):
            self.row(start + place * seconds, seconds, step)
        return self

    def end(self, time: float, outcome: str, **fields: Any) -> Story:
        return self.event(time, "attempt/ended", attempt=self.attempt, outcome=outcome, seconds=1.0, **fields)
