"""Build the ledger from events and step rows. Pure.

Each allocation is a window of time. Intervals are painted over it, coarse ones first: bring-up from the attempt's
start to its first row, the gate, the attempt's tail, then the rows of its steps. Uncovered time is `other`, so the
buckets always sum to the time held.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from slurm_rl.plugins.goodput.allocations import Allocation, Steps, find_allocations, is_settled, number
from slurm_rl.plugins.goodput.causes import find_cause
from slurm_rl.plugins.goodput.types import BUCKETS, Cause, Charge, Ledger
from slurm_rl.run_dir.jsonl import Row

_STAGE_BUCKETS = {"eval": "evaluated", "save": "saving"}
_DEATHS = {"trainer/crashed", "trainer/failed", "node/died", "node/failed", "nodes/lost", "attempt/ended"}
Label = tuple[str, Cause | None]
"""Bucket and the cause that it is charged to."""
_TEARDOWN: Label = ("teardown", None)


class Interval(NamedTuple):
    """An interval of time with a label."""

    start: float
    end: float
    label: Label


@dataclass(eq=False)
class _Attempt:
    """Events and rows of one attempt."""

    number: int
    start: float
    end: float
    """Unix time of the end of the attempt or of its allocation."""
    events: list[Row]
    rows: Sequence[Row]
    ended: Row | None
    resumed: int | None
    """Step of the loaded checkpoint, 0 without one; None if it ended before loading."""
    saved: int
    """Step of the newest checkpoint at its end."""
    cause: Cause | None
    losses: list[tuple[int, Cause | None]] = field(default_factory=list)
    """Steps after which all others were lost, with the cause; oldest loss first."""

    def times(self, *kinds: str) -> list[float]:
        return [number(event, "time") for event in self.events if event.get("kind") in kinds]

    def find_loss(self, row: Row) -> tuple[int, Cause | None] | None:
        """Return the first loss of this step; None if it survived."""
        return next((loss for loss in self.losses if number(row, "step") > loss[0]), None)

    @property
    def is_untimed(self) -> bool:
        """Whether the attempt worked without rows: an external trainer, or a run of an earlier version."""
        saved = self.times("checkpoint/saved", "eval/done", "trainer/finished")
        return not self.rows and bool(self.times("external/started") or (saved and self.times("trainer/started")))


def build_ledger(events: Sequence[Row], steps: Steps, *, unit: str = "GPU") -> Ledger | None:
    """Return the current ledger of a run; None before its first attempt.

    Args:
        events: rows of events.jsonl, in any order.
        steps: a training attempt without rows makes goodput unknown.
        unit: `GPU`, or `node` without GPUs.
    """
    ordered = sorted(events, key=lambda event: number(event, "time"))
    allocations = find_allocations(ordered, steps)
    attempts = _find_attempts(ordered, steps, allocations)
    _find_losses(attempts)
    if not allocations:
        return None
    totals: dict[Label, float] = defaultdict(float)
    for one in allocations:
        for label, seconds in paint(one.start, one.end, ("other", None), _intervals(one, attempts)).items():
            totals[label] += seconds * (one.units - one.spare)
        totals["spare", None] += one.spare * (one.end - one.start)
    buckets = dict.fromkeys(BUCKETS, 0.0)
    for (bucket, _), seconds in totals.items():
        buckets[bucket] += seconds
    blank = [str(attempt.number) for attempt in attempts if attempt.is_untimed]
    return Ledger(
        "GPU" if unit == "GPU" else "node",
        attempts=len(attempts),
        held_s=sum(one.units * (one.end - one.start) for one in allocations),
        queue_s=sum(one.queued_s for one in allocations),
        queue_unit_s=sum(one.queued_s * one.units for one in allocations),
        buckets=buckets,
        charges=_charges(totals, [attempt.cause for attempt in attempts if attempt.cause]),
        unknown=(f"no step times of attempt {', '.join(blank)} (an external trainer)",) if blank else (),
    )


def _find_attempts(events: Sequence[Row], steps: Steps, allocations: Sequence[Allocation]) -> list[_Attempt]:
    begun = {int(number(event, "attempt")): event for event in events if event.get("kind") == "attempt/started"}
    order = [(one, name) for one in allocations for name in one.attempts]
    found: list[_Attempt] = []
    saved = 0
    for (one, name), following in zip(order, [*order[1:], None], strict=False):
        start = number(begun[name], "time")
        limit = number(begun[following[1]], "time") if following else float("inf")
        own = [event for event in events if start <= number(event, "time") < limit]
        saves = [int(number(event, "step")) for event in own if event.get("kind") == "checkpoint/saved"]
        resumes = [int(number(event, "step")) for event in own if event.get("kind") == "trainer/resumed"]
        ends = [event for event in own if event.get("kind") == "attempt/ended" and event.get("attempt") == name]
        rows, ended = steps.get(name, ()), ends[-1] if ends else None
        end = limit if following and following[0] is one else one.end
        if ended is not None and not is_settled(ended):
            end = min(end, number(ended, "time"))
        is_requeued = bool(following and following[0] is not one and following[0].key[0] == one.key[0])
        cause = find_cause(own, ended, is_requeued=is_requeued)
        saved = max([saved, *saves])
        resumed = resumes[-1] if resumes else 0 if rows else None
        found.append(_Attempt(name, start, end, own, rows, ended, resumed, saved, cause))
    return found


def _find_losses(attempts: Sequence[_Attempt]) -> None:
    """Note in each attempt which of its steps were lost; an attempt that ends during bring-up loses no steps."""
    cause: Cause | None = None
    for place, attempt in enumerate(attempts):
        if attempt.resumed is not None:
            for earlier in attempts[:place]:
                earlier.losses.append((attempt.resumed, cause))
        if attempt.rows or place == 0:
            cause = attempt.cause
    if attempts and attempts[-1].cause is not None:
        # The next attempt would resume from there.
        for attempt in attempts:
            attempt.losses.append((attempts[-1].saved, cause))


def _intervals(allocation: Allocation, attempts: Sequence[_Attempt]) -> Iterator[Interval]:
    """Yield the intervals of one allocation, coarse ones first."""
    mine = [attempt for attempt in attempts if attempt.number in allocation.attempts]
    for attempt in mine:
        place = attempts.index(attempt)
        charged = attempts[place - 1].cause if place else None
        if not attempt.rows and attempt.cause:
            charged = attempt.cause  # the attempt trained nothing
        yield from _bring_up(attempt, allocation.start if attempt is mine[0] else attempt.start, charged)
        yield from _tail(attempt)
        limit = next((other.start for other in mine if other.start > attempt.start), allocation.end)
        yield Interval(attempt.end, limit, _TEARDOWN)
        yield from _rows(attempt)


def _bring_up(attempt: _Attempt, begin: float, charged: Cause | None) -> Iterator[Interval]:
    """Yield the bring-up until the first row, the wait for engines after the warmup, and the gate."""
    if attempt.rows:
        first = number(attempt.rows[0], "start")
    else:
        kinds = ("external/started", "trainer/started") if attempt.is_untimed else ()
        first = max(attempt.times(*kinds), default=attempt.end)
    yield Interval(begin, min(first, attempt.end), ("bring_up", charged))
    for before, row in pairwise(attempt.rows):
        if before.get("stage") == "warmup" and row.get("stage") != "warmup":
            yield Interval(_end_of(before), number(row, "start"), ("bring_up", charged))
    passed = next((event for event in attempt.events if event.get("kind") == "preflight/passed"), None)
    if passed:
        time = number(passed, "time")
        start = time - number(passed, "seconds") if "seconds" in passed else attempt.start
        yield Interval(max(start, attempt.start), time, ("gate", charged))


def _tail(attempt: _Attempt) -> Iterator[Interval]:
    """Yield the intervals from the last row to the attempt's end."""
    if attempt.ended is None or not attempt.rows:
        return
    last = _end_of(attempt.rows[-1])
    if attempt.ended.get("outcome") in ("finished", "checkpointed"):
        yield Interval(last, attempt.end, _TEARDOWN)
        return
    died = [] if is_settled(attempt.ended) else [time for time in attempt.times(*_DEATHS) if time >= last]
    bucket, death = "cut", min(died, default=attempt.end)
    hung = attempt.times("rank/hung")
    if hung and hung[0] >= last:
        bucket, death = "hung", hung[0]
    yield Interval(last, death, (bucket, attempt.cause))
    yield Interval(death, attempt.end, _TEARDOWN)


def _rows(attempt: _Attempt) -> Iterator[Interval]:
    """Yield steps, evaluations and saves; the gap before the last save is an interrupted step."""
    for before, row in pairwise(attempt.rows):
        if row.get("stage") == "save" and before.get("stage") != "warmup":
            yield Interval(_end_of(before), number(row, "start"), ("cut", attempt.cause))
    for row in attempt.rows:
        bucket = _STAGE_BUCKETS.get(str(row.get("stage")), "trained")
        loss = None if bucket == "saving" else attempt.find_loss(row)
        yield Interval(number(row, "start"), _end_of(row), ("redone", loss[1]) if loss else (bucket, None))


def _end_of(row: Row) -> float:
    return number(row, "start") + max(0.0, number(row, "seconds"))


def _charges(totals: Mapping[Label, float], ends: Sequence[Cause]) -> tuple[Charge, ...]:
    """Return the charges by cause; a cause without a measurable loss is included."""
    sums: dict[Cause, dict[str, float]] = {cause: {} for cause in ends}
    for (bucket, cause), seconds in totals.items():
        if cause is not None and seconds:
            sums.setdefault(cause, {})[bucket] = seconds
    charges = [Charge(cause, ends.count(cause), buckets) for cause, buckets in sums.items()]
    return tuple(sorted(charges, key=lambda charge: -charge.seconds))


def paint(start: float, end: float, base: Label, intervals: Iterable[Interval]) -> dict[Label, float]:
    """Return the seconds of the window by label: `base`, covered by intervals, later ones over earlier ones.

    Intervals are clipped to the window; one that ends before it starts covers nothing. The values sum to the window.

    >>> other, up, trained = [(name, None) for name in ("other", "bring_up", "trained")]
    >>> found = paint(0.0, 10.0, other, [Interval(1.0, 6.0, up), Interval(4.0, 12.0, trained), Interval(9.0, 9.0, up)])
    >>> found[other], found[up], found[trained]
    (1.0, 3.0, 6.0)
    """
    clipped = [Interval(max(start, one.start), min(end, one.end), one.label) for one in intervals]
    clipped = [one for one in clipped if one.start < one.end]
    last_first = sorted(range(len(clipped)), key=lambda order: -clipped[order].start)
    found: dict[Label, float] = defaultdict(float)
    active: list[int] = []  # negative order: the latest interval first
    for at, cut in pairwise(sorted({start, end, *(edge for one in clipped for edge in one[:2])})):
        while last_first and clipped[last_first[-1]].start <= at:
            heapq.heappush(active, -last_first.pop())
        while active and clipped[-active[0]].end <= at:
            heapq.heappop(active)
        found[clipped[-active[0]].label if active else base] += cut - at
    return found
