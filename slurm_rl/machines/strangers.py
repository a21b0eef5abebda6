"""Who has connected to the head and not said who it is: anybody who reaches the port. Bounded in all that it costs.

A machine of the run is through here in the time of a few messages. So where there are too many, the oldest of the
address that has most has to go: who only holds connections loses them, and who was hit by chance comes again.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

_LEAST = 64
# Of the descriptors that this process may have: it starts agents and writes files beside.
_SHARE_OF_DESCRIPTORS = 4
_BURST, _LINE_EVERY_S = 8, 60.0


class Stranger(Protocol):
    """What is looked at here."""

    @property
    def peer(self) -> str: ...


Some = TypeVar("Some", bound=Stranger)


def most_strangers(num_nodes: int) -> int:
    """How many connections may wait: twice those of a run that comes all at once, as far as descriptors go."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(_LEAST, 2 * num_nodes)
    return wanted if descriptors == resource.RLIM_INFINITY else min(wanted, descriptors // _SHARE_OF_DESCRIPTORS)


def choose_to_drop(strangers: list[Some], most: int) -> list[Some]:
    """Those that have to go until `most` are left; `strangers` are in the order in which they came.

    >>> from types import SimpleNamespace as S
    >>> [s.peer for s in choose_to_drop([S(peer="a"), S(peer="b"), S(peer="b"), S(peer="b")], 2)]
    ['b', 'b']
    """
    left, dropped = list(strangers), []
    counts = Counter(stranger.peer for stranger in strangers)
    while len(left) > most:
        [(peer, _)] = counts.most_common(1)
        counts[peer] -= 1
        oldest = next(stranger for stranger in left if stranger.peer == peer)
        left.remove(oldest)
        dropped.append(oldest)
    return dropped


class SeldomEvents:
    """Writes what strangers bring about: the first few at once, then a line a minute with how many there were.

    Args:
        write: takes an event's kind and fields.
        now: a clock in seconds.
    """

    def __init__(self, write: Callable[..., None], now: Callable[[], float] = time.monotonic) -> None:
        self._write, self._now = write, now
        self._may_write, self._seen_at = float(_BURST), now()
        self._left_out = 0

    def add(self, kind: str, **fields: Any) -> None:
        now = self._now()
        self._may_write = min(_BURST, self._may_write + (now - self._seen_at) / _LINE_EVERY_S)
        self._seen_at = now
        if self._may_write < 1:
            self._left_out += 1
            return
        self._may_write -= 1
        left_out, self._left_out = self._left_out, 0
        self._write(kind, **fields, **({"others_left_out": left_out} if left_out else {}))

    def close(self) -> None:
        """Tell of those that no line told of."""
        if self._left_out:
            self._write("node/turned_away", others_left_out=self._left_out)
            self._left_out = 0
