"""Connection and rate limits for unauthenticated peers, per address.

A member of the run authenticates within a few messages. Above the limit, the oldest connection of the address with the
most connections is closed; a member that is hit by chance reconnects.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

_BURST, _LINE_EVERY_S = 8, 60.0

Some = TypeVar("Some")


def at_most(wanted: int, *, share: int) -> int:
    """Return `wanted` connections, but at most 1/`share` of this process's file descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if descriptors == resource.RLIM_INFINITY else min(wanted, descriptors // share)


class Crowd(Generic[Some]):
    """Unauthenticated connections in order of arrival, counted per address.

    >>> crowd: Crowd[str] = Crowd()
    >>> for one, peer in [("a", "here"), ("b", "there"), ("c", "there"), ("d", "there")]:
    ...     crowd.add(one, peer)
    >>> crowd.choose(2), list(crowd)
    (['b', 'c'], ['a', 'd'])
    """

    def __init__(self) -> None:
        self._peers: dict[Some, str] = {}
        self._by_peer: dict[str, dict[Some, None]] = defaultdict(dict)

    def add(self, one: Some, peer: str) -> None:
        """Add a connection as the newest."""
        self.remove(one)
        self._peers[one] = peer
        self._by_peer[peer][one] = None

    def remove(self, one: Some) -> None:
        """Remove a closed or authenticated connection; no-op if it is unknown."""
        peer = self._peers.pop(one, None)
        if peer is None:
            return
        del self._by_peer[peer][one]
        if not self._by_peer[peer]:
            del self._by_peer[peer]

    def choose(self, most: int) -> list[Some]:
        """Remove and return the connections to close, until `most` are left."""
        chosen: list[Some] = []
        while len(self._peers) > max(0, most):
            peer = max(self._by_peer, key=lambda peer: len(self._by_peer[peer]))
            chosen.append(next(iter(self._by_peer[peer])))
            self.remove(chosen[-1])
        return chosen

    def __contains__(self, one: object) -> bool:
        return one in self._peers

    def __iter__(self) -> Iterator[Some]:
        return iter(list(self._peers))

    def __len__(self) -> int:
        return len(self._peers)


class Seldom:
    """Rate limiter: a burst, then one per minute.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._may_pass, self._seen_at = float(_BURST), now()
        self._left_out = 0

    def take(self) -> int | None:
        """Return the number of suppressed calls since the last pass; None if this call is suppressed, too."""
        now = self._now()
        self._may_pass = min(_BURST, self._may_pass + (now - self._seen_at) / _LINE_EVERY_S)
        self._seen_at = now
        if self._may_pass < 1:
            self._left_out += 1
            return None
        self._may_pass -= 1
        return self.take_left_out()

    def take_left_out(self) -> int:
        """Return and reset the number of suppressed calls."""
        left_out, self._left_out = self._left_out, 0
        return left_out


class SeldomEvents:
    """Writes rate-limited events, each with the number of suppressed events before it.

    Args:
        write: takes an event's kind and fields.
        now: a clock in seconds.
    """

    def __init__(self, write: Callable[..., None], now: Callable[[], float] = time.monotonic) -> None:
        self._write, self._seldom = write, Seldom(now)

    def add(self, kind: str, **fields: Any) -> None:
        left_out = self._seldom.take()
        if left_out is not None:
            self._write(kind, **fields, **({"others_left_out": left_out} if left_out else {}))

    def close(self) -> None:
        """Write the number of suppressed events."""
        if left_out := self._seldom.take_left_out():
            self._write("node/turned_away", others_left_out=left_out)
