"""Framed messages over a socket between processes that trust each other.

`multiprocessing.Connection` makes three system calls per message (25 us of the trainer); `Wire.receive` makes one for
all messages that have arrived.
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
"""Batching delay of outgoing messages in seconds."""
_HEAD = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 18
_MOST_BYTES = 1 << 31
"""Largest valid size of a message."""


class Wire:
    """One end of two connected sockets. One thread may send while another receives.

    Args:
        encode, decode: serialization of messages. The default, pickle, lets the other side run code.
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
        """Return our end and the socket of the other end, to be wrapped in another process."""
        ours, theirs = socket.socketpair()
        return cls(ours, decode=decode), theirs

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> None:
        """Send a message. Raises OSError if the connection is closed."""
        self.send_bytes(_frame(self._encode(message)))

    def send_bytes(self, data: bytes) -> None:
        self._end.sendall(data)

    def send_some(self, data: bytes) -> int:
        """Send as many bytes as fit into the buffer, without blocking, and return their number."""
        try:
            return self._end.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def receive(self) -> list[Any]:
        """Wait for data and return all complete messages, perhaps none.

        Raises:
            EOFError, OSError: the connection is closed.
            Exception: invalid data; raised by `decode`, or ValueError.
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

    def close(self) -> None:
        self._end.close()


class Outbox:
    """Sends without blocking: a thread sends the data that does not fit into the buffer."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def put(self, message: Any) -> None:
        """Send a message, in order. On a closed connection it is dropped; the receiving thread gets the error."""
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
        """Drop the unsent messages."""
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
                    data = self._waiting[0]  # stays in the queue until it is sent, to keep the order
                self._wire.send_bytes(data)
                with self._changed:
                    self._waiting.popleft()


def pack(message: Any) -> bytes:
    return _frame(_pickle(message))


def _pickle(message: Any) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _frame(data: bytes) -> bytes:
    return _HEAD.pack(len(data)) + data
