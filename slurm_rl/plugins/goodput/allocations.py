"""Find the times in which a run held its nodes, from its events. Pure.

A start of a job is identified by the job and Slurm's restart count in `attempt/started`. It begins when the scheduler
granted the nodes and ends with its last event. A killed controller writes no last event; then the next start records
when the job was queued again, which is when its nodes were released.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_rl.run_dir.jsonl import Row

Steps = Mapping[int, Sequence[Row]]
"""Rows of steps.jsonl by attempt."""
_LATER = {"job/submitted", "file/damaged", "file/mended", "attempt/settled"}
"""Events that a later process writes; they do not prove that the earlier start was alive."""


@dataclass
class Allocation:
    """One start of a job, from the grant of its nodes to their release; times are Unix times."""

    first: Row
    """Its first `attempt/started`."""
    last_sign: float
    """Time of the last event of its own."""
    submitted: float | None
    """Newest submission since the previous start."""
    attempts: list[int] = field(default_factory=list)
    start: float = 0.0
    end: float = 0.0
    queued_s: float = 0.0
    """Wall seconds in the queue before it."""

    @property
    def key(self) -> tuple[str, int]:
        return str(self.first.get("job")), int(number(self.first, "slurm_restarts"))

    @property
    def units(self) -> int:
        """GPUs held; nodes without GPUs."""
        return int(number(self.first, "gpus") or number(self.first, "nodes")) or 1

    @property
    def spare(self) -> int:
        """Units on spare nodes."""
        return min(self.units, max(0, int(number(self.first, "spare"))))


def number(row: Row, key: str, otherwise: float = 0.0) -> float:
    """Return a numeric field, or `otherwise` if it is missing or not a number."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def is_settled(event: Row) -> bool:
    """Return whether the next controller wrote this end for a killed one; it has no measured times."""
    return event.get("kind") == "attempt/ended" and "seconds" not in event


def find_allocations(events: Sequence[Row], steps: Steps) -> list[Allocation]:
    """Return the starts of a run in order, without overlaps.

    Args:
        events: oldest first.
        steps: the last row of an attempt may be its last sign of life.
    """
    found: list[Allocation] = []
    submitted: float | None = None
    for event in events:
        kind, time = event.get("kind"), number(event, "time")
        if kind == "job/submitted":
            submitted = time
        if kind == "attempt/started":
            new = Allocation(event, time, submitted)
            if not found or found[-1].key != new.key:
                found.append(new)
                submitted = None
            found[-1].attempts.append(int(number(event, "attempt")))
        if found and kind not in _LATER and not is_settled(event):
            found[-1].last_sign = max(found[-1].last_sign, time)
    released: float | None = None
    for one, later in zip(found, [*found[1:], None], strict=False):
        one.start = _granted(one) if released is None else max(_granted(one), released)
        one.end = max(one.start, _find_end(one, later, steps))
        queued = [one.submitted] if one.submitted is not None else []
        if released is not None:
            queued += [released, number(one.first, "queued_since")]
        one.queued_s = max(0.0, one.start - max(queued)) if queued else 0.0
        released = one.end
    return found


def _granted(one: Allocation) -> float:
    started = number(one.first, "time")
    return min(number(one.first, "start_time", started), started)


def _find_end(one: Allocation, later: Allocation | None, steps: Steps) -> float:
    rows = [row for attempt in one.attempts for row in steps.get(attempt, ())[-1:]]
    signs = [one.last_sign, *(number(row, "start") + number(row, "seconds") for row in rows)]
    if later is None:
        return max(signs)
    # Only a requeued job; `resume` submits another job.
    if later.key[0] == one.key[0]:
        signs.append(number(later.first, "queued_since"))
    return min(max(signs), _granted(later))
