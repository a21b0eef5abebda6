"""Types of the goodput ledger. Standard library only, for login nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

BUCKETS: dict[str, str] = {
    "trained": "steps that survived",
    "evaluated": "evaluations that survived",
    "saving": "the loop waiting for checkpoints; writing in the background is not in it",
    "gate": "looking at the nodes before an attempt",
    "bring_up": "from the grant or the attempt's start to its first step: image, Ray, engines, loading",
    "redone": "steps and evaluations after the checkpoint that the next attempt went on from",
    "cut": "from the last step of an attempt to what ended it",
    "hung": "from the last step to the finding that a rank hangs",
    "spare": "nodes held beyond those that work",
    "teardown": "from what ended an attempt to the next one, or to the end of the job; the export is in it",
    "other": "what no event explains; more than 2 % of it is a bug, or a run of an earlier version",
}
"""Bucket -> description. Each second of each held GPU is in exactly one bucket."""

Who = Literal["node", "preemption", "limit", "program", "user", "requeue"]
"""Cause of an attempt's end. `requeue`: the job was started again for an unrecorded reason."""


@dataclass(frozen=True)
class Cause:
    """Reason why an attempt ended before the run finished."""

    who: Who
    name: str = ""
    """Name of the node at fault."""
    reason: str = ""
    """Short reason, such as `Xid 79`."""


@dataclass(frozen=True)
class Charge:
    """Time lost to one cause: repeated and interrupted steps, and the gate and bring-up after it."""

    cause: Cause
    attempts: int
    """Number of attempts that it ended."""
    buckets: dict[str, float]
    """Unit-seconds by bucket; part of the ledger's buckets."""

    @property
    def seconds(self) -> float:
        return sum(self.buckets.values())


@dataclass(frozen=True)
class Hold:
    """One start of a job, from the grant of its nodes to their release.

    >>> Hold(start=100.0, end=160.0, units=16, spare=8, attempts=(1, 2)).seconds
    960.0
    """

    start: float
    end: float
    units: int
    """GPUs held; nodes without GPUs."""
    spare: int = 0
    """Number of these on spare nodes."""
    attempts: tuple[int, ...] = ()
    queued_s: float = 0.0
    """Wall seconds in the queue before it."""

    @property
    def seconds(self) -> float:
        return self.units * (self.end - self.start)


@dataclass(frozen=True)
class Ledger:
    """The time of a run over all its attempts and starts, in unit-seconds (GPU-seconds; node-seconds without GPUs).

    >>> ledger = Ledger("GPU", 1, 100.0, 10.0, 10.0, {"trained": 90.0, "bring_up": 10.0})
    >>> ledger.goodput, round(ledger.ettr, 3)
    (0.9, 0.818)
    """

    unit: Literal["GPU", "node"]
    attempts: int
    held_s: float
    queue_s: float
    """Wall seconds in the queue."""
    queue_unit_s: float
    """Queue time multiplied by the GPUs requested."""
    buckets: dict[str, float]
    """Unit-seconds by bucket; they sum to `held_s`."""
    charges: tuple[Charge, ...] = ()
    """Losses by cause, largest first."""
    phases: dict[str, float] = field(default_factory=dict)
    """Wall seconds of surviving steps by phase, which may overlap."""
    unknown: tuple[str, ...] = ()
    """Reasons why goodput is unknown."""

    @property
    def goodput(self) -> float | None:
        """trained / held."""
        return None if self.unknown or not self.held_s else self.buckets.get("trained", 0.0) / self.held_s

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: trained / (held + queued), as in arXiv:2410.21680."""
        whole = self.held_s + self.queue_unit_s
        return None if self.unknown or not whole else self.buckets.get("trained", 0.0) / whole

    def to_json(self) -> dict[str, Any]:
        """Return the content of summary.json; seconds to the millisecond."""
        return {
            "unit": f"{self.unit}-seconds",
            "attempts": self.attempts,
            "held": round(self.held_s, 3),
            "queue_wall_s": round(self.queue_s, 3),
            "goodput": None if self.goodput is None else round(self.goodput, 4),
            "ettr": None if self.ettr is None else round(self.ettr, 4),
            "buckets": {name: round(self.buckets.get(name, 0.0), 3) for name in BUCKETS},
            "lost_to": [
                {
                    "who": charge.cause.who,
                    "name": charge.cause.name,
                    "reason": charge.cause.reason,
                    "attempts": charge.attempts,
                    "seconds": round(charge.seconds, 3),
                }
                for charge in self.charges
            ],
            "phases_wall_s": {name: round(value, 3) for name, value in self.phases.items()},
            "unknown": list(self.unknown),
        }
