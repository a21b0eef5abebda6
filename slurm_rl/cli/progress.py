"""Current state of a run, folded from its events and rows, and its display.

It reads only the run directory, so any process can show it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slurm_rl.config.tasks import STAGE_TITLES
from slurm_rl.run_dir.event_text import format_seconds, render_event
from slurm_rl.run_dir.jsonl import Row, RowTail
from slurm_rl.run_dir.row_text import WATCHED
from slurm_rl.run_dir.run_dir import RunDir

STAGES: dict[str, str] = {
    "job/submitted": "waiting for the job to start",
    "attempt/started": "starting the nodes",
    "node/started": "starting the processes",
    "ray/head_ready": "waiting for all nodes to join Ray",
    "torchrun/started": "waiting for all ranks",
    "ray/cluster_ready": "loading the model",
    "engine/ready": "rollout engines are ready",
    "eval/started": "evaluating",
    "trainer/started": "starting to train",
    "trainer/resumed": "resuming from the checkpoint",
    "trainer/finished": "finished",
}
"""Stage after each event; other kinds do not change it."""

ROW_STAGES = {"warmup": "warm-up", **STAGE_TITLES}


@dataclass
class Progress:
    """The state of the display. `apply_event` and `apply_row` are its only ways to change."""

    stage: str = "waiting for the job to start"
    done: int = 0
    total: int = 0
    """Steps of this stage; 0 before training starts, when there is nothing to count."""
    attempt_started: float = 0.0
    warmup_steps: int = 0
    num_steps: int = 0
    latest: dict[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=20))

    def apply_event(self, event: Row) -> None:
        kind = event["kind"]
        if kind == "attempt/started":
            self.attempt_started = event["time"]
        if kind == "trainer/started":
            self.warmup_steps = int(event.get("warmup_steps", 0))
            self.num_steps = int(event.get("num_steps", 0))
        if kind == "attempt/ended":
            self._enter(f"attempt ended: {event.get('outcome', 'unknown')}")
        elif kind == "workers/loading":
            self._enter(f"loading weights, {event.get('ready')} of {event.get('of')} {event.get('workers')} ready")
        elif kind in STAGES:
            self._enter(STAGES[kind])

    def apply_row(self, row: Row) -> None:
        """Take over the numbers; the stage too, unless the row is older than the attempt."""
        self.latest.update({key: value for key, value in row.items() if "/" in key})
        if row["stage"] not in ROW_STAGES or row.get("time/stamp", 0.0) < self.attempt_started:
            return
        self._enter(ROW_STAGES[row["stage"]])
        # Steps count on over the run; a person wants them from 1 in each stage.
        warm = row["stage"] == "warmup"
        self.done = row["step"] if warm else row["step"] - self.warmup_steps
        self.total = self.warmup_steps if warm else self.num_steps
        if "time/step_s" in row:
            self.step_seconds.append(row["time/step_s"])

    def _enter(self, stage: str) -> None:
        if stage != self.stage:
            self.stage, self.done, self.total = stage, 0, 0
            self.step_seconds.clear()

    def stage_text(self) -> str:
        """`GRPO 37/100`, or only the stage."""
        return f"{self.stage} {self.done}/{self.total}" if self.total else self.stage

    def left_s(self) -> float | None:
        """Seconds left of this stage, at the pace of its last steps."""
        if not self.total or not self.step_seconds:
            return None
        return max(0, self.total - self.done) * sum(self.step_seconds) / len(self.step_seconds)

    def numbers(self) -> list[str]:
        """The few numbers worth watching, of those measured so far."""
        told = [text.format(self.latest[key]) for key, text in WATCHED.items() if key in self.latest]
        left = self.left_s()
        return told if left is None else [*told, f"{format_seconds(left)} left"]


REFRESH_S = 0.25
LINE_EVERY_S = 5.0
WAIT_LINE_EVERY_S = 15.0
"""Longest silence of a log before the first step."""
LINE_EVERY_STEPS = 10


def follow(run: RunDir, is_alive: Callable[[], bool]) -> None:
    """Show the run until `is_alive` returns False, with the last lines written."""
    progress = Progress()
    events, metrics = RowTail(run.events), RowTail(run.metrics)
    show, alive = Display(progress), True
    while alive:
        # Check before reading the files, so that the last lines of a dying run are shown.
        alive = is_alive()
        show(_advance(progress, events, metrics))
        if alive:
            time.sleep(REFRESH_S)


def _advance(progress: Progress, events: RowTail, metrics: RowTail) -> list[Row]:
    """Fold in new rows, and return the new events."""
    added, rows = events.read_new(), metrics.read_new()
    # The two files tell one story: a row comes after the events that happened before it.
    told = [(event["time"], event, True) for event in added]
    told += [(row.get("time/stamp", 0.0), row, False) for row in rows]
    for _, item, is_event in sorted(told, key=lambda entry: entry[0]):
        if is_event:
            progress.apply_event(item)
        else:
            progress.apply_row(item)
    return sorted(added, key=lambda event: float(event["time"]))


class Display:
    """Print a line per event, and one for progress every few seconds or steps; no cursor movement."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._printed_at = self._entered_at = time.monotonic()
        self._printed = ("", 0)

    def __call__(self, events: list[Row]) -> None:
        now = time.monotonic()
        for event in events:
            print(render_event(event), flush=True)
            self._printed_at = self._entered_at = now
        if not self._progress.total and now - self._printed_at >= WAIT_LINE_EVERY_S:
            print(f"{self._progress.stage} (for {format_seconds(now - self._entered_at)})", flush=True)
            self._printed_at = now
        if self._is_due():
            progress = self._progress
            self._printed = (progress.stage, progress.done)
            self._printed_at = time.monotonic()
            print(", ".join([progress.stage_text(), *progress.numbers()]), flush=True)

    def _is_due(self) -> bool:
        """Return whether a progress line is due; before the first step there are only events."""
        progress = self._progress
        stage, done = self._printed
        if not progress.total or (progress.stage, progress.done) == (stage, done):
            return False
        if progress.stage != stage or progress.done >= progress.total:
            return True
        late = time.monotonic() - self._printed_at >= LINE_EVERY_S
        return late or progress.done - done >= LINE_EVERY_STEPS
