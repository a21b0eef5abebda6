"""Build the ledger from events and step rows. Pure.

Each start of the job is a window of time. Intervals are painted over it, coarse ones first: bring-up from the attempt's
start to its first row, the gate, the attempt's tail, then the rows of its steps. Uncovered time is `other`, so the
buckets always sum to the time held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.plugins.goodput.causes import find_cause
from slurm_rl.plugins.goodput.holds import NOT_BILLED, Billed, clip, find_holds, is_settled, number
from slurm_rl.plugins.goodput.nouns import BUCKETS, Cause, Charge, Hold, Ledger
from slurm_rl.plugins.goodput.paint import Label, Stripe, paint
from slurm_rl.run_dir.jsonl import Row

Steps = Mapping[int, Sequence[Row]]
"""Rows of each attempt's steps.jsonl."""
_NOT_TRAINING = {"eval": "evaluated", "save": "saving"}
_DEATHS = {"trainer/crashed", "trainer/failed", "node/died", "node/failed", "nodes/lost", "attempt/ended"}
_AT_WORK = "trainer/started"


@dataclass
class _Attempt:
    """Events and rows of one attempt."""

    number: int
    place: int
    """Index in the order of attempts."""
    job: str
    start: float
    end: float
    """Unix time of the end of the attempt or of its start of the job."""
    events: list[Row]
    rows: list[Row]
    ended: Row | None = None
    resumed: int | None = None
    """Step of the loaded checkpoint, 0 without one; None if it ended before loading."""
    cause: Cause | None = None
    saved: int = 0
    """Step of the newest checkpoint at its end."""


def build_ledger(
    events: Sequence[Row],
    steps: Steps,
    *,
    unit: str = "GPU",
    units: int = 1,
    spare: int = 0,
    since: float = 0.0,
    billed: Billed = NOT_BILLED,
) -> Ledger | None:
    """Return the current ledger of a run; None before its first attempt.

    Args:
        events: rows of events.jsonl, in any order.
        steps: rows by attempt; a training attempt without rows makes goodput unknown.
        unit: `GPU`, or `node` without GPUs.
        units, spare: defaults for starts whose event does not record them.
        since: Unix time; omit everything before it.
        billed: accounting records; see `find_holds`.
    """
    ordered = sorted(events, key=lambda event: number(event, "time"))
    holds = find_holds(ordered, steps, units=units, spare=spare, billed=billed)
    if not holds:
        return None
    attempts = _find_attempts(ordered, steps, holds)
    lost_at = _find_losses(attempts)
    holds = [clip(hold, since) for hold in holds if hold.end > since]
    if not holds:
        return None
    totals: dict[Label, float] = {("spare", None): 0.0}
    for hold in holds:
        mine = [attempt for attempt in attempts if attempt.number in hold.attempts]
        found = paint(hold.start, hold.end, ("other", None), _stripes(hold, mine, attempts, lost_at))
        for label, seconds in found.items():
            totals[label] = totals.get(label, 0.0) + seconds * (hold.units - hold.spare)
        totals["spare", None] += hold.spare * (hold.end - hold.start)
    buckets = dict.fromkeys(BUCKETS, 0.0)
    for (bucket, _), seconds in totals.items():
        buckets[bucket] += seconds
    return Ledger(
        "GPU" if unit == "GPU" else "node",
        attempts=sum(attempt.end > since for attempt in attempts),
        held_s=sum(hold.seconds for hold in holds),
        queue_s=sum(hold.queued_s for hold in holds),
        queue_unit_s=sum(hold.queued_s * hold.units for hold in holds),
        buckets=buckets,
        charges=_charges(totals, [attempt for attempt in attempts if attempt.end > since]),
        phases=_phases(attempts, lost_at, since),
        unknown=tuple(_unknown(attempts)),
    )


# ---- attempts ------------------------------------------------------------------------------------


def _find_attempts(events: Sequence[Row], steps: Steps, holds: Sequence[Hold]) -> list[_Attempt]:
    """Return the attempts in order, each within its start of the job."""
    found: list[_Attempt] = []
    for hold in holds:
        begun = [event for event in events if event.get("kind") == "attempt/started"]
        starts = {int(number(event, "attempt")): number(event, "time") for event in begun}
        jobs = {int(number(event, "attempt")): str(event.get("job")) for event in begun}
        for place, name in enumerate(hold.attempts):
            later = hold.attempts[place + 1] if place + 1 < len(hold.attempts) else None
            end = hold.end if later is None else starts[later]
            found.append(_Attempt(name, len(found), jobs[name], starts[name], end, [], list(steps.get(name, ()))))
    saved = 0
    for place, attempt in enumerate(found):
        limit = found[place + 1].start if place + 1 < len(found) else float("inf")
        attempt.events = [event for event in events if attempt.start <= number(event, "time") < limit]
        for event in attempt.events:
            _take(attempt, event)
            if event.get("kind") == "checkpoint/saved":
                saved = max(saved, int(number(event, "step")))
        attempt.saved = saved
        if attempt.rows and attempt.resumed is None:
            attempt.resumed = 0
        if attempt.ended is not None and not is_settled(attempt.ended):
            attempt.end = min(attempt.end, number(attempt.ended, "time"))
    for place, attempt in enumerate(found):
        following = found[place + 1] if place + 1 < len(found) else None
        hold = next(hold for hold in holds if attempt.number in hold.attempts)
        again = following is not None and following.number not in hold.attempts and following.job == attempt.job
        attempt.cause = find_cause(attempt.events, attempt.ended, is_requeued=again)
    return found


def _take(attempt: _Attempt, event: Row) -> None:
    kind = event.get("kind")
    if kind == "attempt/ended" and event.get("attempt") == attempt.number:
        attempt.ended = event
    elif kind == "trainer/resumed":
        attempt.resumed = int(number(event, "step"))


def _find_losses(attempts: Sequence[_Attempt]) -> dict[int, list[tuple[int, int]]]:
    """Return by attempt the pairs (step, index of the attempt whose end lost all steps after it), oldest end first."""
    losses: dict[int, list[tuple[int, int]]] = {attempt.number: [] for attempt in attempts}
    trained = 0
    """Index of the newest attempt that trained; an attempt that ends during bring-up loses no steps."""
    for place, attempt in enumerate(attempts):
        if attempt.resumed is not None:
            for earlier in attempts[:place]:
                losses[earlier.number].append((attempt.resumed, trained))
        trained = place if attempt.rows else trained
        if place == len(attempts) - 1 and attempt.cause is not None:
            # The next attempt would resume from there.
            for each in attempts:
                losses[each.number].append((attempt.saved, trained))
    return losses


# ---- stripes -------------------------------------------------------------------------------------


def _stripes(
    hold: Hold,
    mine: Sequence[_Attempt],
    attempts: Sequence[_Attempt],
    lost_at: Mapping[int, list[tuple[int, int]]],
) -> Iterator[Stripe]:
    """Yield the intervals of one start of the job, coarse ones first."""
    for attempt in mine:
        owed = attempts[attempt.place - 1].cause if attempt.place else None
        if not attempt.rows and attempt.cause:
            owed = attempt.cause  # the attempt trained nothing
        first = attempt is mine[0]
        begin = hold.start if first else attempt.start
        yield from _bring_up(attempt, begin, owed)
        yield from _tail(attempt)
        limit = next((other.start for other in mine if other.start > attempt.start), hold.end)
        yield Stripe(attempt.end, limit, ("teardown", None))
        yield from _rows(attempt, attempts, lost_at[attempt.number])


def _bring_up(attempt: _Attempt, begin: float, owed: Cause | None) -> Iterator[Stripe]:
    """Yield the bring-up until the first row, and the wait for engines after the warmup."""
    first = number(attempt.rows[0], "start") if attempt.rows else _end_of_bring_up(attempt)
    yield Stripe(begin, min(first, attempt.end), ("bring_up", owed))
    for before, row in zip(attempt.rows, attempt.rows[1:], strict=False):
        if before.get("stage") == "warmup" and row.get("stage") != "warmup":
            yield Stripe(_end_of(before), number(row, "start"), ("bring_up", owed))
    passed = [event for event in attempt.events if event.get("kind") == "preflight/passed"]
    if passed:
        time = number(passed[0], "time")
        start = time - number(passed[0], "seconds") if "seconds" in passed[0] else attempt.start
        yield Stripe(max(start, attempt.start), time, ("gate", owed))


def _end_of_bring_up(attempt: _Attempt) -> float:
    """Return the end of the bring-up of an attempt without rows: its end, or the begin of untimed work."""
    kinds = ("external/started", _AT_WORK) if _came_to_work(attempt) else ()
    return max((number(event, "time") for event in attempt.events if event.get("kind") in kinds), default=attempt.end)


def _tail(attempt: _Attempt) -> Iterator[Stripe]:
    """Yield the intervals from the last row to the attempt's end."""
    if attempt.ended is None or not attempt.rows:
        return
    last = _end_of(attempt.rows[-1])
    outcome, cause = attempt.ended.get("outcome"), attempt.cause
    if outcome in ("finished", "checkpointed"):
        yield Stripe(last, attempt.end, ("teardown", None))
        return
    died = [number(event, "time") for event in attempt.events if event.get("kind") in _DEATHS]
    death = min([time for time in died if time >= last and not is_settled(attempt.ended)], default=attempt.end)
    hung = [number(event, "time") for event in attempt.events if event.get("kind") == "rank/hung"]
    if hung and hung[0] >= last:
        death = hung[0]
    yield Stripe(last, death, ("hung" if hung and hung[0] == death else "cut", cause))
    yield Stripe(death, attempt.end, ("teardown", None))


def _rows(attempt: _Attempt, attempts: Sequence[_Attempt], losses: Sequence[tuple[int, int]]) -> Iterator[Stripe]:
    """Yield steps, evaluations and saves; the gap before the last save is an interrupted step."""
    for before, row in zip(attempt.rows, attempt.rows[1:], strict=False):
        if row.get("stage") == "save" and before.get("stage") != "warmup":
            yield Stripe(_end_of(before), number(row, "start"), ("cut", attempt.cause))
    for row in attempt.rows:
        bucket = _NOT_TRAINING.get(str(row.get("stage")), "trained")
        at = number(row, "start"), _end_of(row)
        loss = None if bucket == "saving" else _loss_of(row, losses)
        yield Stripe(*at, (bucket, None) if loss is None else ("redone", attempts[loss].cause))


def _loss_of(row: Row, losses: Sequence[tuple[int, int]]) -> int | None:
    """Return the index of the first attempt whose end lost this step; None if it survived."""
    step = number(row, "step")
    return next((place for kept, place in losses if step > kept), None)


def _end_of(row: Row) -> float:
    return number(row, "start") + max(0.0, number(row, "seconds"))


# ---- sums ----------------------------------------------------------------------------------------


def _charges(totals: Mapping[Label, float], attempts: Sequence[_Attempt]) -> tuple[Charge, ...]:
    sums: dict[Cause, dict[str, float]] = {}
    for (bucket, cause), seconds in totals.items():
        if cause is not None and seconds:
            sums.setdefault(cause, {})[bucket] = seconds
    ends = [attempt.cause for attempt in attempts]
    # A cause without a measurable loss is listed too.
    for cause in ends:
        if cause is not None:
            sums.setdefault(cause, {})
    charges = [Charge(cause, ends.count(cause), buckets) for cause, buckets in sums.items()]
    return tuple(sorted(charges, key=lambda charge: -charge.seconds))


def _phases(
    attempts: Sequence[_Attempt], lost_at: Mapping[int, list[tuple[int, int]]], since: float
) -> dict[str, float]:
    found: dict[str, float] = {}
    for attempt in attempts:
        for row in attempt.rows:
            is_lost = row.get("stage") in _NOT_TRAINING or _loss_of(row, lost_at[attempt.number]) is not None
            if is_lost or number(row, "start") < since:
                continue
            for name, seconds in (row.get("phases") or {}).items():
                found[name] = found.get(name, 0.0) + seconds
    return found


def _unknown(attempts: Sequence[_Attempt]) -> Iterator[str]:
    blank = [str(attempt.number) for attempt in attempts if not attempt.rows and _came_to_work(attempt)]
    if blank:
        which = f"attempt {blank[0]}" if len(blank) == 1 else f"attempts {', '.join(blank)}"
        yield f"{which} left no times of steps (an earlier version, or somebody else's trainer)"


def _came_to_work(attempt: _Attempt) -> bool:
    """Return whether the attempt reached its training loop, or started an external trainer."""
    if any(event.get("kind") == "external/started" for event in attempt.events):
        return True
    saved = any(event.get("kind") in ("checkpoint/saved", "eval/done", "trainer/finished") for event in attempt.events)
    return saved and any(event.get("kind") == _AT_WORK for event in attempt.events)
