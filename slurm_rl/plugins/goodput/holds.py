"""Find the times in which a run held its nodes, from its events. Pure.

A start of a job is identified by the job and Slurm's restart count in `attempt/started`. It begins when the scheduler
granted the nodes and ends with its last event. A killed controller writes no last event; then the next start records
when the job was queued again, which is when its nodes were released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.plugins.goodput.nouns import Hold
from slurm_rl.run_dir.jsonl import Row

_LATER = {"job/submitted", "file/damaged", "file/mended", "attempt/settled"}
"""Events that a later process writes; they do not prove that the earlier start was alive."""


@dataclass
class _Start:
    """Events of one start."""

    key: tuple[str, int]
    first: Row
    attempts: list[int] = field(default_factory=list)
    last_sign: float = 0.0
    submitted: float | None = None
    """Unix time of the newest submission since the previous start."""

    @property
    def begin(self) -> float:
        started = number(self.first, "time")
        return min(number(self.first, "start_time", started), started)


def number(row: Row, key: str, otherwise: float = 0.0) -> float:
    """Return a numeric field, or `otherwise` if it is missing or not a number."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def is_settled(event: Row) -> bool:
    """Return whether the next controller wrote this end for a killed one; it has no measured times."""
    return event.get("kind") == "attempt/ended" and "seconds" not in event


Billed = Mapping[str, Sequence[tuple[float, float]]]
"""Job -> start and end of each of its starts in the scheduler's accounting."""
NOT_BILLED: Billed = {}


def find_holds(
    events: Sequence[Row],
    steps: Mapping[int, Sequence[Row]],
    *,
    units: int = 1,
    spare: int = 0,
    billed: Billed = NOT_BILLED,
) -> list[Hold]:
    """Return the starts of a run in order, without overlaps.

    Args:
        events: oldest first.
        steps: rows of steps.jsonl by attempt; the last row may be the last sign of life.
        units, spare: defaults for a start whose event does not record them.
        billed: accounting records; they override the events.
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
    """Return the part of a hold after `since`.

    >>> clip(Hold(10.0, 30.0, 1, queued_s=5.0), 8.0).queued_s, clip(Hold(10.0, 30.0, 1, queued_s=5.0), 20.0).start
    (2.0, 20.0)
    """
    begin = min(hold.end, max(hold.start, since))
    return replace(hold, start=begin, queued_s=min(hold.queued_s, max(0.0, hold.start - since)))


def _find_billed(start: _Start, billed: Billed) -> tuple[float, float] | None:
    """Return the accounting record that contains this start, to a second, since accounting has whole seconds."""
    at = number(start.first, "time")
    rows = [row for row in billed.get(start.key[0], ()) if row[0] - 1 <= at <= row[1] + 1]
    return max(rows, default=None)


def _find_end(start: _Start, later: _Start | None, steps: Mapping[int, Sequence[Row]]) -> float:
    rows = [row for attempt in start.attempts for row in steps.get(attempt, ())[-1:]]
    signs = [start.last_sign, *(number(row, "start") + number(row, "seconds") for row in rows)]
    if later is None:
        return max(signs)
    # Only a requeued job; `resume` submits another job.
    if later.key[0] == start.key[0]:
        signs.append(number(later.first, "queued_since"))
    return min(max(signs), later.begin)


def _find_queued(start: _Start, before: float | None, begin: float) -> float:
    """Return the wall seconds since the submission or the end of the previous start, whichever is later."""
    since = [time for time in (start.submitted, before) if time is not None]
    if before is not None:
        since.append(number(start.first, "queued_since"))
    return max(0.0, begin - max(since)) if since else 0.0
