"""Feeds and drains the pipes of sandboxed processes within a deadline."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO


@dataclass
class Reader:
    """Collects the output of a descriptor; bytes beyond `limit` are discarded."""

    limit: int
    stops: bool = False
    awaited: bool = True
    data: bytearray = field(default_factory=bytearray)
    overflowed: bool = False

    def take(self, chunk: bytes) -> None:
        room = self.limit - len(self.data)
        self.data += chunk[:room]
        self.overflowed = self.overflowed or len(chunk) > room


def watch(readers: Mapping[int, Reader], give_up: float, writer: IO[bytes] | None = None, text: bytes = b"") -> bool:
    """Drain `readers` (by descriptor) until all awaited ones have ended, and write `text` to `writer`, then close it.

    Returns:
        False at the deadline `give_up` (monotonic clock), or if a reader with `stops` exceeded its limit.
    """
    awaited = {fd for fd, reader in readers.items() if reader.awaited}
    left = memoryview(text)
    with selectors.DefaultSelector() as selector:
        for fd in readers:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        if writer is not None:
            os.set_blocking(writer.fileno(), False)
            selector.register(writer, selectors.EVENT_WRITE)
        while awaited:
            if time.monotonic() >= give_up:
                return False
            for key, _ in selector.select(max(0.0, give_up - time.monotonic())):
                if writer is not None and key.fileobj is writer:
                    left = _feed(writer.fileno(), left)
                    if not left:
                        selector.unregister(writer)
                        writer.close()
                    continue
                reader = readers[key.fd]
                if _drain(key.fd, reader):
                    selector.unregister(key.fd)
                    awaited.discard(key.fd)
                if reader.stops and reader.overflowed:
                    return False
    return True


def _drain(fd: int, reader: Reader) -> bool:
    """Take one chunk; True at the end."""
    try:
        chunk = os.read(fd, 1 << 16)
    except BlockingIOError:
        return False
    reader.take(chunk)
    return not chunk


def _feed(fd: int, left: memoryview) -> memoryview:
    """Write as much as fits and return the rest; empty if the reader has closed."""
    try:
        return left[os.write(fd, left) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]
