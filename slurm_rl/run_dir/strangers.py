"""Who connects to a port of ours without having said who it is: anybody who reaches it. Bounded in all that it costs.

One who belongs to the run is through here in the time of a few messages. So where there are too many, the oldest of the
address that has most has to go: who only holds connections loses them, and who was hit by chance comes again.
"""

from __future__ import annotations

import logging
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

_BURST, _LINE_EVERY_S = 8, 60.0

Some = TypeVar("Some")


def at_most(wanted: int, *, share: int) -> int:
    """`wanted` connections, as far as that share (1/n) of this process's descriptors goes."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if descriptors == resource.RLIM_INFINITY else min(wanted, descriptors // share)


class Crowd(Generic[Some]):
    """Connections in the order in which they came, and how many each address has.

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
        """Let it wait here, as the newest."""
        self.remove(one)
        self._peers[one] = peer
        self._by_peer[peer][one] = None

    def remove(self, one: Some) -> None:
        """It has left, or said who it is; nothing where it is not here."""
        peer = self._peers.pop(one, None)
        if peer is None:
            return
        del self._by_peer[peer][one]
        if not self._by_peer[peer]:
            del self._by_peer[peer]

    def choose(self, most: int) -> list[Some]:
        """Take out those that have to go until `most` are left."""
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
    """The first few at once, then one a minute.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._may_pass, self._seen_at = float(_BURST), now()
        self._left_out = 0

    def take(self) -> int | None:
        """How many were left out before this one; None when it is left out, too."""
        now = self._now()
        self._may_pass = min(_BURST, self._may_pass + (now - self._seen_at) / _LINE_EVERY_S)
        self._seen_at = now
        if self._may_pass < 1:
            self._left_out += 1
            return None
        self._may_pass -= 1
        return self.take_left_out()

    def take_left_out(self) -> int:
        """How many were left out since this was asked."""
        left_out, self._left_out = self._left_out, 0
        return left_out


class SeldomEvents:
    """Writes what strangers bring about, seldom, each time with how many there were that no line told of.

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
        """Tell of those that no line told of."""
        if left_out := self._seldom.take_left_out():
            self._write("node/turned_away", others_left_out=left_out)


class SeldomLines(logging.Filter):
    """For a logger that has a line for everything that a stranger sends."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        left_out = self._seldom.take()
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines were left out before)", None
        return left_out is not None
