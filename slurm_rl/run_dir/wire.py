"""Messages between two processes that trust each other: all that have come are read with one call of the system.

Connection.poll and .recv   three calls of the system a message, or 25 us of the trainer
Wire.receive                one for as many as there are
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

LINGER_S = 0.01
"""So long messages may wait for others to go along."""
_HEAD = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 18
_MOST_BYTES = 1 << 31
"""Of a message; a length above it is not that of a message."""


class Wire:
    """One end of two connected sockets. One thread may send while another receives.

    Args:
        encode, decode: messages as bytes; pickle unless said otherwise, so the other side is trusted with code.
    """

    def __init__(
        self,
        end: socket.socket,
        encode: Callable[[Any], bytes] | None = None,
        decode: Callable[[bytes], Any] = pickle.loads,
    ) -> None:
        self._end, self._kept = end, bytearray()
        self._encode, self._decode = encode or _pickle, decode

    @classmethod
    def pair(cls, decode: Callable[[bytes], Any] = pickle.loads) -> tuple[Wire, socket.socket]:
        """Our end, and the other's for another process to make a Wire of."""
        ours, theirs = socket.socketpair()
        return cls(ours, decode=decode), theirs

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> None:
        """Raises OSError when the other side is gone."""
        self.send_bytes(_frame(self._encode(message)))

    def send_bytes(self, data: bytes) -> None:
        self._end.sendall(data)

    def send_some(self, data: bytes) -> int:
        """Send as many bytes as there is room for; returns at once."""
        try:
            return self._end.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def receive(self) -> list[Any]:
        """Messages that are whole, perhaps none; waits until something has come.

        Raises:
            EOFError, OSError: the other side is gone.
            Exception: what has come is no message; of `decode`, or ValueError.
        """
        data = self._end.recv(_CHUNK_BYTES)
        if not data:
            raise EOFError
        self._kept += data
        found, at = [], 0
        while len(self._kept) >= at + _HEAD.size:
            start = at + _HEAD.size
            size = _HEAD.unpack_from(self._kept, at)[0]
            if size > _MOST_BYTES:
                raise ValueError(f"a message of {size:,} bytes")
            end = start + size
            if end > len(self._kept):
                break
            found.append(self._decode(bytes(memoryview(self._kept)[start:end])))
            at = end
        del self._kept[:at]
        return found

    def shut_down(self) -> None:
        """End it for both sides, and for a thread of this one that receives."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end.close()


class Outbox:
    """Sends without waiting: what the other side has no room for goes out in a thread.

    A thread for each message would have every one change threads, which costs as much as all else about it.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def put(self, message: Any) -> None:
        """Messages go out in their order. To a side that is gone they go nowhere, which whoever receives is told."""
        data = pack(message)
        with self._changed, contextlib.suppress(OSError):
            if not self._waiting:
                data = data[self._wire.send_some(data) :]
            if data:
                self._waiting.append(data)
                self._changed.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._write, name="outbox", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """What waits is sent no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._is_closed)
                    if self._is_closed:
                        return
                    data = self._waiting[0]  # stays there until it is sent, so that none goes before it
                self._wire.send_bytes(data)
                with self._changed:
                    self._waiting.popleft()


def pack(message: Any) -> bytes:
    return _frame(_pickle(message))


def _pickle(message: Any) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _frame(data: bytes) -> bytes:
    return _HEAD.pack(len(data)) + data
