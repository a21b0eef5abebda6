"""Render a ledger as one line of text. Pure."""

from collections.abc import Iterator

from slurm_rl.cli.table import format_age
from slurm_rl.plugins.goodput.types import BUCKETS, Cause, Ledger

_LABELS = {"evaluated": "evaluation", "redone": "done again", "cut": "cut off", "spare": "spare nodes"}
_EARLY = ("trained", "evaluated", "gate", "bring_up")
_CAUSES = {
    "node": "a node",
    "preemption": "preemption",
    "limit": "the time limit",
    "program": "a failure",
    "user": "a stop by hand",
    "requeue": "a requeue",
}


def render_line(ledger: Ledger) -> str:
    """Return one line: the time held and its shares in whole percent; shares below half a percent are in `other`.

    >>> from slurm_rl.plugins.goodput.types import Charge
    >>> h = 4096 * 3600
    >>> lost = Charge(Cause("node", "n17", "Xid 79"), 2, {"redone": 0.03 * h, "bring_up": 0.01 * h})
    >>> buckets = {"trained": 0.91 * h, "bring_up": 0.04 * h, "redone": 0.03 * h, "saving": 0.01 * h, "other": 0.01 * h}
    >>> print(render_line(Ledger("GPU", 3, h, 7 * 3600, 7 * h / 8, buckets, (lost,))))
    4,096 GPU-hours: 91 % trained, 3 % bring-up, 4 % lost to n17 (Xid 79, 2 attempts), 1 % saving, 1 % other; queued 7 h
    """
    parts = [(text, round(100 * share)) for bucket, text, share in split(ledger) if bucket != "other"]
    shown = [f"{share} % {text}" for text, share in parts if share]
    rest = 100 - sum(share for _, share in parts)
    if ledger.held_s and rest > 0:
        shown.append(f"{rest} % other")
    queued = f"; queued {format_age(ledger.queue_s)}" if ledger.queue_s >= 1 else ""
    unknown = f" ({'; '.join(ledger.unknown)})" if ledger.unknown else ""
    return f"{render_held(ledger)}: {', '.join(shown) or 'nothing yet'}{queued}{unknown}"


def split(ledger: Ledger) -> Iterator[tuple[str, str, float]]:
    """Yield (bucket, text, share) in the order of a run; the bucket is "" for a charge, and the shares sum to 1."""
    whole = ledger.held_s or 1.0
    charged = {name: sum(charge.buckets.get(name, 0.0) for charge in ledger.charges) for name in BUCKETS}
    own = []
    for name in (*_EARLY, *(name for name in BUCKETS if name not in _EARLY)):
        seconds = max(0.0, ledger.buckets.get(name, 0.0) - charged[name])
        own.append((name, _LABELS.get(name, name.replace("_", "-")), seconds / whole))
    yield from own[: len(_EARLY)]
    for charge in ledger.charges:
        yield "", render_cause(charge.cause, charge.attempts), charge.seconds / whole
    yield from own[len(_EARLY) :]


def render_cause(cause: Cause, attempts: int) -> str:
    """Return the text of a cause.

    >>> render_cause(Cause("limit"), 3), render_cause(Cause("node", "n2"), 1)
    ('lost to the time limit (3 attempts)', 'lost to n2')
    """
    inside = [cause.reason] if cause.reason else []
    inside += [f"{attempts} attempts"] if attempts > 1 else []
    return f"lost to {cause.name or _CAUSES[cause.kind]}" + (f" ({', '.join(inside)})" if inside else "")


def render_held(ledger: Ledger) -> str:
    """Return the time held in a suitable unit.

    >>> render_held(Ledger("node", 1, 90.0, 0.0, 0.0, {})), render_held(Ledger("GPU", 1, 9e5, 0.0, 0.0, {}))
    ('90 node-seconds', '250 GPU-hours')
    """
    units = ((3600.0, "hours"), (60.0, "minutes"))
    size, name = next(((size, name) for size, name in units if ledger.held_s >= 2 * size), (1.0, "seconds"))
    return f"{_count(ledger.held_s / size)} {ledger.unit}-{name}"


def render_ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _count(value: float) -> str:
    return f"{value:,.1f}" if value < 10 and value != round(value) else f"{value:,.0f}"
