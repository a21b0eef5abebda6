"""How long bring-up took and where: each phase in seconds since the job got its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slurm_rl.jsonl import read_rows
from slurm_rl.run_dir import AttemptDir, RunDir, append_event

# Event -> the phase that it ends. Of several nodes the last one counts.
PHASES = {
    "attempt/started": "controller_s",
    "preflight/passed": "preflight_s",
    "node/started": "agents_s",
    "ray/head_ready": "head_s",
    "torchrun/started": "head_s",
    "ray/cluster_ready": "nodes_s",
    "trainer/started": "trainer_s",
}


class PhaseWatch:
    """Follows the events of one attempt and writes `attempt/brought_up` once the trainer has started."""

    def __init__(self, run: RunDir, attempt: AttemptDir, granted_at: Callable[[], float | None]) -> None:
        """Args:
        granted_at: when the job got its nodes, in seconds since 1970; None when nobody knows.
        """
        self.run_dir, self.attempt, self.granted_at = run, attempt, granted_at
        self.size, self.is_done = -1, False

    def look(self) -> None:
        """Cheap when nothing has happened; call it while waiting for the nodes."""
        if self.is_done or not self.run_dir.events.is_file():
            return
        size = self.run_dir.events.stat().st_size
        if size == self.size:
            return
        self.size = size
        events = _of_attempt(read_rows(self.run_dir.events), self.attempt.number)
        if any(event.get("kind") == "trainer/started" for event in events):
            self.is_done = True
            phases = compute_phases(events, self._zero(events))
            append_event(self.run_dir, "attempt/brought_up", attempt=self.attempt.number, **phases)

    def _zero(self, events: list[dict[str, Any]]) -> float:
        """When the allocation began; a later attempt in it counts from its own start, as a local run does."""
        own = float(events[0]["time"])
        is_first = self.attempt.number == 1 or self._follows_a_requeue()
        granted = self.granted_at() if is_first else None
        return own if granted is None else granted

    def _follows_a_requeue(self) -> bool:
        started = [row for row in read_rows(self.run_dir.events) if row.get("kind") == "attempt/started"]
        starts = [(row["job"], row["slurm_restarts"]) for row in started]
        return len(starts) < 2 or starts[-1] != starts[-2]


def _of_attempt(events: Iterable[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The events from this attempt's start on."""
    start = ("attempt/started", number)
    return list(itertools.dropwhile(lambda row: (row.get("kind"), row.get("attempt")) != start, events))


def compute_phases(events: Iterable[Mapping[str, Any]], zero: float) -> dict[str, float]:
    """Seconds from `zero` to the end of each phase.

    >>> compute_phases([{"kind": "node/started", "time": 12.5}, {"kind": "node/started", "time": 13.0}], 10.0)
    {'agents_s': 3.0}
    """
    times = {PHASES[row["kind"]]: float(row["time"]) for row in events if row.get("kind") in PHASES}
    # Slurm counts in whole seconds, so a phase may seem to end before the job began.
    return {name: round(max(0.0, time - zero), 2) for name, time in times.items()}
