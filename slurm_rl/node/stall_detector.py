"""Find late processes and slow ranks from heartbeats.

>>> deadline_of(num_calls=5, longest_s=20.0, least_s=60.0, most_s=3600.0)
100.0
>>> deadline_of(num_calls=4, longest_s=20.0, least_s=60.0, most_s=3600.0)
3600.0
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.node.heartbeat import NUM_SPEEDS

FACTOR = 5.0
"""Deadline as a multiple of the longest interval seen (the factor of NVRx)."""
MIN_CALLS = 5
"""Calls of a phase after which its usual duration is known."""
SLOW = 0.75
"""Share of its peers' speed below which a rank is a straggler (the bound of NVRx)."""
# These wait for a disk or run users' code, and have deadlines of their own.
_UNMONITORED = {"", "save", "load", "export", "export_model", "load_reference", "ready", "build", "check_rows", "sleep"}
# In its other phases the driver waits for actors that have heartbeats.
_MONITORED_OF_DRIVER = {"train", "sync"}


@dataclass(frozen=True)
class Beat:
    """Newest heartbeat of a process."""

    name: str
    pid: int
    phase: str
    """Current phase; "" while it waits for a call."""
    age_s: float
    """Seconds since the heartbeat."""
    num_calls: int = 0
    """Finished calls of this phase."""
    longest_s: float = 0.0
    """Longest interval between two heartbeats of this phase."""
    speeds: tuple[float, ...] = ()
    """Seconds per token of the newest steps, oldest first."""

    @property
    def role(self) -> str:
        """Name of the group with the same work: `policy` of policy-3."""
        return self.name.rpartition("-")[0] or self.name


def parse_beat(text: str, now: float) -> Beat | None:
    """Parse a heartbeat file; None while it is being written.

    Args:
        now: the node's time.monotonic().
    """
    try:
        row = json.loads(text)
        age_s = round(max(0.0, now - row.pop("last")), 3)
        return Beat(**{**row, "age_s": age_s, "speeds": tuple(row["speeds"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def read_beats(folder: Path, now: float) -> list[Beat]:
    """Return the heartbeats of the node, also of processes that have ended."""
    beats = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError):
            beats.append(parse_beat(path.read_text(encoding="ascii", errors="replace"), now))
    return [beat for beat in beats if beat is not None]


def deadline_of(num_calls: int, longest_s: float, least_s: float, most_s: float) -> float:
    """Return the seconds that may pass between two heartbeats.

    Args:
        least_s: job.heartbeat_timeout_s; it wins where it exceeds `most_s`.
        most_s: trainer.step_timeout_s.
    """
    return max(least_s, most_s if num_calls < MIN_CALLS else min(FACTOR * longest_s, most_s))


def find_late(beats: Iterable[Beat], least_s: float, most_s: float) -> list[tuple[Beat, float]]:
    """Return late processes with their deadlines."""
    late = []
    for beat in beats:
        if beat.phase in _MONITORED_OF_DRIVER if beat.name == "driver" else beat.phase not in _UNMONITORED:
            deadline = deadline_of(beat.num_calls, beat.longest_s, least_s, most_s)
            late += [(beat, deadline)] if beat.age_s > deadline else []
    return late


def find_stragglers(beats: Sequence[Beat]) -> dict[str, float]:
    """Return slow ranks with their speed relative to their peers, by the best of the newest five steps.

    >>> fast, slow = (1.0,) * 5, (2.0,) * 5
    >>> find_stragglers([Beat(f"rank-{n}", n, "", 0.0, speeds=slow if n == 2 else fast) for n in range(4)])
    {'rank-2': 0.5}
    """
    slow: dict[str, float] = {}
    for role in dict.fromkeys(beat.role for beat in beats):
        best = {beat.name: min(beat.speeds) for beat in beats if beat.role == role and len(beat.speeds) == NUM_SPEEDS}
        if len(best) > 1:
            usual = statistics.median_low(best.values())
            slow |= {name: round(usual / own, 3) for name, own in best.items() if usual / own < SLOW}
    return slow
