"""Types of the goodput ledger. Standard library only, for login nodes."""

from dataclasses import dataclass
from typing import Any, Literal

BUCKETS: dict[str, str] = {
    "trained": "steps that counted, with their logging",
    "evaluated": "evaluations that counted",
    "saving": "the training loop blocked by a checkpoint",
    "gate": "node checks before an attempt",
    "bring_up": "from the start of an attempt to its first step: image, Ray, engines, loading",
    "redone": "steps and evaluations that were lost because they came after the checkpoint",
    "cut": "the unfinished step when an attempt ended",
    "hung": "from the last step to the detection of a hang",
    "spare": "spare nodes",
    "teardown": "from the end of an attempt to the next one or the end of the job, with the export",
    "other": "not explained by any event; above 2 % it is a bug",
}
"""Bucket -> description. Each second of each allocated GPU is in exactly one bucket."""


@dataclass(frozen=True)
class Cause:
    """Reason why an attempt ended before the run finished."""

    kind: Literal["node", "preemption", "limit", "program", "user", "requeue"]
    """`requeue`: the job was started again for an unrecorded reason."""
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
                {**vars(charge.cause), "attempts": charge.attempts, "seconds": round(charge.seconds, 3)}
                for charge in self.charges
            ],
            "unknown": list(self.unknown),
        }
