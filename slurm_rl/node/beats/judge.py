"""Who is late, and which rank is slow. Pure.

>>> find_deadline(num_calls=5, longest_s=20.0, least_s=60.0, most_s=3600.0)
100.0
>>> find_deadline(num_calls=4, longest_s=20.0, least_s=60.0, most_s=3600.0)
3600.0
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.node.beats.pulse import NUM_SPEEDS

FACTOR = 5.0
"""A deadline is so many times the longest that was seen; NVRx' factor."""
MIN_CALLS = 5
"""Before so many calls of a phase have ended, nobody knows how long it takes."""
SLOW = 0.75
"""A rank is slow whose speed is less than this part of its peers'; NVRx' bound."""
_MIN_RANKS = 2
# What waits for a disk, or for what somebody else's code does, has deadlines of its own, or may take its time.
_PATIENT = {"", "save", "load", "export", "export_model", "load_reference", "ready", "build", "check_rows", "sleep"}
# The driver waits for others nearly always; here it does so by asking again and again, each time a beat.
_OF_THE_DRIVER = {"train", "sync"}


@dataclass(frozen=True)
class Beat:
    """The newest sign of life of a process."""

    name: str
    pid: int
    phase: str
    """What it does; "" of one that waits for a call."""
    age_s: float
    """Since the last beat."""
    num_calls: int = 0
    """Calls of this phase that have ended."""
    longest_s: float = 0.0
    """Between two beats of this phase, so far."""
    speeds: tuple[float, ...] = ()
    """Seconds a token of the newest steps, own work alone; oldest first."""
    num_speeds: int = 0
    """Steps whose speed was told."""

    @property
    def role(self) -> str:
        """Who does the same: `policy` of policy-3."""
        return self.name.rpartition("-")[0] or self.name


def parse_beat(text: str, now: float) -> Beat | None:
    """What a `Pulse` wrote; None of a line that is being written.

    Args:
        now: by time.monotonic() of that node.
    """
    try:
        row: Mapping[str, Any] = json.loads(text)
        return Beat(
            str(row["name"]),
            int(row["pid"]),
            str(row["phase"]),
            round(max(0.0, now - row["last"]), 3),
            int(row["calls"]),
            float(row["longest"]),
            tuple(map(float, row["speeds"])),
            int(row["num_speeds"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def find_deadline(num_calls: int, longest_s: float, least_s: float, most_s: float) -> float:
    """Seconds that may pass between two beats.

    Args:
        num_calls: of this phase that have ended.
        longest_s: between two beats of it.
        least_s: job.heartbeat_timeout_s. Where it is above `most_s` it counts.
        most_s: trainer.step_timeout_s.
    """
    return max(least_s, most_s if num_calls < MIN_CALLS else min(FACTOR * longest_s, most_s))


def is_judged(beat: Beat) -> bool:
    """Whether silence in this phase means anything."""
    return beat.phase in _OF_THE_DRIVER if beat.name == "driver" else beat.phase not in _PATIENT


def find_overdue(beats: Iterable[Beat], least_s: float, most_s: float) -> list[tuple[Beat, float]]:
    """Those that are late, with their deadline."""
    judged = [
        (beat, find_deadline(beat.num_calls, beat.longest_s, least_s, most_s)) for beat in filter(is_judged, beats)
    ]
    return [(beat, deadline) for beat, deadline in judged if beat.age_s > deadline]


def find_stragglers(beats: Sequence[Beat]) -> dict[str, float]:
    """Name of each slow rank -> its score: the speed of its best step of the newest five, as a part of its peers'.

    Slow in each of five steps, that is: one slow step makes nobody a straggler. Of two ranks the faster is the measure.

    >>> fast, slow = (1.0,) * 5, (2.0,) * 5
    >>> find_stragglers([Beat(f"rank-{n}", n, "", 0.0, speeds=slow if n == 2 else fast) for n in range(4)])
    {'rank-2': 0.5}
    """
    found: dict[str, float] = {}
    for role in dict.fromkeys(beat.role for beat in beats):
        best = {beat.name: min(beat.speeds) for beat in beats if beat.role == role and len(beat.speeds) == NUM_SPEEDS}
        if len(best) < _MIN_RANKS:
            continue
        usual = statistics.median_low(best.values())
        found |= {name: round(usual / own, 3) for name, own in best.items() if usual / own < SLOW}
    return found
