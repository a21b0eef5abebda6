"""Schedule of faults: a pure function of the seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.chaos.kinds import Kind

REST_S = 5.0
"""Seconds between the end of a fault and the next one."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    >>> Fault(20.0, "node/power", 0.4, 15.0, waits=True)
    Fault(at_s=20.0, kind='node/power', pick=0.4, lasts_s=15.0, waits=True)
    """

    at_s: float
    """Seconds from the start of the storm."""
    kind: str
    pick: float
    """Position of the target among the candidates, 0 <= pick < 1; they are only known at injection."""
    lasts_s: float
    """Seconds until it is undone; 0 if momentary."""
    waits: bool
    """Whether to wait until the attempt has saved; otherwise the fault may hit a bring-up."""

    def choose(self, among: Sequence[str]) -> str:
        """Return the target.

        >>> Fault(0.0, "", 0.5, 0.0, waits=False).choose(["a", "b"])
        'b'
        """
        return among[int(self.pick * len(among))]


def build_schedule(seed: int, seconds: float, every_s: float, kinds: Sequence[Kind]) -> tuple[Fault, ...]:
    """Return faults in order of time, about one per `every_s`.

    Every kind occurs once before any occurs twice. Of two consecutive faults at least one waits: two attempts without
    progress end a run by design.
    """
    rng = random.Random(f"chaos {seed}")
    faults: list[Fault] = []
    deck: list[Kind] = []
    at_s = every_s * rng.uniform(0.2, 0.6)
    while at_s < seconds:
        if not deck:
            deck = rng.sample(list(kinds), len(kinds))
        kind = deck.pop()
        waits = not faults or not faults[-1].waits or rng.random() < 0.6
        lasts_s = round(rng.uniform(*kind.lasts_s), 1)
        faults.append(Fault(min(round(at_s, 1), seconds), kind.name, rng.randrange(1000) / 1000, lasts_s, waits))
        at_s += max(every_s * rng.uniform(0.75, 1.25), lasts_s + REST_S)
    return tuple(faults)


def cut_piece(faults: Sequence[Fault], seconds: float, piece: int, of: int) -> tuple[Fault, ...]:
    """Return the `piece`-th of `of` equal parts of a storm, with times from the start of the part."""
    length = seconds / of
    start = (piece - 1) * length
    return tuple(replace(f, at_s=round(f.at_s - start, 1)) for f in faults if start <= f.at_s < start + length)
