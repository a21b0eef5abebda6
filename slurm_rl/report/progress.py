"""The display of a run in the foreground. It reads the run directory alone, so any process can show it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slurm_rl.jsonl import Row, RowTail
from slurm_rl.report.meta import render_event
from slurm_rl.report.progress_state import Progress
from slurm_rl.report.summary import format_seconds
from slurm_rl.run_dir import RunDir

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REFRESH_S = 0.25
LINE_EVERY_S = 5.0
LINE_EVERY_STEPS = 10

Show = Callable[[list[Row]], None]
"""Shows the state, given the events that are new."""


def follow(run: RunDir, is_alive: Callable[[], bool]) -> None:
    """Show the run until `is_alive` says it ended; what it wrote last is still shown."""
    progress = Progress()
    events, metrics = RowTail(run.events), RowTail(run.metrics)
    with _open_display(run, progress) as show:
        alive = True
        while alive:
            # Asked before the files are read, so that the last lines of a dying run are not missed.
            alive = is_alive()
            show(_advance(progress, events, metrics))
            if alive:
                time.sleep(REFRESH_S)


def _advance(progress: Progress, events: RowTail, metrics: RowTail) -> list[Row]:
    """Fold in what is new, and return the new events."""
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


@contextmanager
def _open_display(run: RunDir, progress: Progress) -> Iterator[Show]:
    """A live panel on a terminal, plain lines anywhere else."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        yield PlainDisplay(progress)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda events: _update(live.console, live.update, events, run.path.name, progress)


class PlainDisplay:
    """One line an event, and one for progress every few seconds or steps; no cursor movement."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._printed_at = 0.0
        self._printed = ("", 0)

    def __call__(self, events: list[Row]) -> None:
        for event in events:
            print(render_event(event), flush=True)
        if self._is_due():
            progress = self._progress
            self._printed = (progress.stage, progress.done)
            self._printed_at = time.monotonic()
            print(", ".join([progress.stage_text(), *progress.numbers()]), flush=True)

    def _is_due(self) -> bool:
        """Only steps are told this way; everything before them has its events."""
        progress = self._progress
        stage, done = self._printed
        if not progress.total or (progress.stage, progress.done) == (stage, done):
            return False
        if progress.stage != stage or progress.done >= progress.total:
            return True
        late = time.monotonic() - self._printed_at >= LINE_EVERY_S
        return late or progress.done - done >= LINE_EVERY_STEPS


def _update(console: Console, draw: Callable[..., None], events: list[Row], name: str, progress: Progress) -> None:
    """Print new events above the panel, where they stay, and redraw the panel."""
    for event in events:
        console.print(render_event(event), style="dim", markup=False, highlight=False)
    draw(render_panel(name, progress, now=time.time()), refresh=True)


def render_panel(name: str, progress: Progress, *, now: float) -> RenderableType:
    """The live part: stage with a bar, the numbers, the last event."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    parts: list[RenderableType] = [Text(progress.stage_text(), style="bold")]
    if progress.total:
        parts.append(ProgressBar(total=progress.total, completed=progress.done))
    if numbers := progress.numbers():
        parts.append(Text("   ".join(numbers)))
    if progress.last_event:
        parts.append(Text(progress.last_event, style="dim", no_wrap=True, overflow="ellipsis"))
    running = "" if progress.first_time is None else format_seconds(now - progress.first_time)
    return Panel(Group(*parts), title=Text(name), title_align="left", subtitle=running, subtitle_align="right")
