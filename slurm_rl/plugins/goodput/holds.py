"""Events -> when a run held its nodes. Pure.

A start of a job is told by the job and Slurm's count of restarts in `attempt/started`. It begins when the scheduler
granted the nodes, where the event says so, and ends with the last word of it: a controller that was killed has none, so
the start after it says since when the job has been waiting again, which is the moment its nodes went back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.plugins.goodput.nouns import Hold
from slurm_rl.run_dir.jsonl import Row

_LATER = {"job/submitted", "file/damaged", "file/mended", "attempt/settled"}
"""Written by who comes after: no sign of life of the start before."""


@dataclass
class _Start:
    """What the events of one start say."""

    key: tuple[str, int]
    first: Row
    attempts: list[int] = field(default_factory=list)
    last_sign: float = 0.0
    submitted: float | None = None
    """The newest submission before it, if there was one since the start before."""

    @property
    def begin(self) -> float:
        started = number(self.first, "time")
        return min(number(self.first, "start_time", started), started)


def number(row: Row, key: str, otherwise: float = 0.0) -> float:
    """A field that should be a number; events are read from disk, whoever wrote them."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def is_settled(event: Row) -> bool:
    """An end that the next controller wrote for an attempt whose own was killed: nothing was measured."""
    return event.get("kind") == "attempt/ended" and "seconds" not in event


Billed = Mapping[str, Sequence[tuple[float, float]]]
"""Job -> start and end of each of its starts, as the scheduler's accounting has them."""
NOT_BILLED: Billed = {}


def find_holds(
    events: Sequence[Row],
    steps: Mapping[int, Sequence[Row]],
    *,
    units: int = 1,
    spare: int = 0,
    billed: Billed = NOT_BILLED,
) -> list[Hold]:
    """The starts of a run in their order, none overlapping the next.

    Args:
        events: oldest first.
        steps: rows of steps.jsonl by attempt: the last sign of life of many.
        units, spare: of a start whose event does not say what it held.
        billed: counts in place of what events say, where it has a start.
    """
    starts: list[_Start] = []
    submitted: float | None = None
    for event in events:
        kind, time = event.get("kind"), number(event, "time")
        if kind == "job/submitted":
            submitted = time
        if kind == "attempt/started":
            key = (str(event.get("job")), int(number(event, "slurm_restarts")))
            if not starts or starts[-1].key != key:
                starts.append(_Start(key, event, last_sign=time, submitted=submitted))
                submitted = None
            starts[-1].attempts.append(int(number(event, "attempt")))
        if starts and kind not in _LATER and not is_settled(event):
            starts[-1].last_sign = max(starts[-1].last_sign, time)
    holds: list[Hold] = []
    for place, start in enumerate(starts):
        later = starts[place + 1] if place + 1 < len(starts) else None
        said = _find_billed(start, billed) or (start.begin, _find_end(start, later, steps))
        begin = max(said[0], holds[-1].end if holds else said[0])
        end = max(begin, said[1])
        held = int(number(start.first, "gpus", 0.0) or number(start.first, "nodes", 0.0)) or units
        queued = _find_queued(start, holds[-1].end if holds else None, begin)
        idle = int(number(start.first, "spare", spare))
        holds.append(Hold(begin, end, held, min(held, max(0, idle)), tuple(start.attempts), queued))
    return holds


def clip(hold: Hold, since: float) -> Hold:
    """What of it was after a time.

    >>> clip(Hold(10.0, 30.0, 1, queued_s=5.0), 8.0).queued_s, clip(Hold(10.0, 30.0, 1, queued_s=5.0), 20.0).start
    (2.0, 20.0)
    """
    begin = min(hold.end, max(hold.start, since))
    return replace(hold, start=begin, queued_s=min(hold.queued_s, max(0.0, hold.start - since)))


def _find_billed(start: _Start, billed: Billed) -> tuple[float, float] | None:
    """The row in whose time this start began; in whole seconds, so a word at its edge may be a second beside it."""
    at = number(start.first, "time")
    rows = [row for row in billed.get(start.key[0], ()) if row[0] - 1 <= at <= row[1] + 1]
    return max(rows, default=None)


def _find_end(start: _Start, later: _Start | None, steps: Mapping[int, Sequence[Row]]) -> float:
    rows = [row for attempt in start.attempts for row in steps.get(attempt, ())[-1:]]
    signs = [start.last_sign, *(number(row, "start") + number(row, "seconds") for row in rows)]
    if later is None:
        return max(signs)
    # Of a job that waits anew; a `resume` is another job.
    if later.key[0] == start.key[0]:
        signs.append(number(later.first, "queued_since"))
    return min(max(signs), later.begin)


def _find_queued(start: _Start, before: float | None, begin: float) -> float:
    """Wall seconds from the submission or the end of the start before, whatever was later."""
    since = [time for time in (start.submitted, before) if time is not None]
    if before is not None:
        since.append(number(start.first, "queued_since"))
    return max(0.0, begin - max(since)) if since else 0.0
