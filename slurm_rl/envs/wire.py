"""Messages between a pool and one of its processes: all that have come are read with one call of the system.

Connection.poll and .recv   three calls of the system a message, or 25 us of the trainer
Wire.receive                one for as many as there are
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_HEAD = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 18


class Wire:
    """One end of a pair of sockets. One thread may send while another receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._kept = end, bytearray()

    @classmethod
    def pair(cls) -> tuple[Wire, socket.socket]:
        """Our end, and the other's for another process to make a Wire of."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> None:
        """Raises OSError when the other side is gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._end.sendall(_HEAD.pack(len(data)) + data)

    def receive(self) -> list[Any]:
        """Messages that are whole, perhaps none; waits until something has come.

        Raises:
            EOFError, OSError: the other side is gone.
        """
        data = self._end.recv(_CHUNK_BYTES)
        if not data:
            raise EOFError
        self._kept += data
        found, at = [], 0
        while len(self._kept) >= at + _HEAD.size:
            start = at + _HEAD.size
            end = start + _HEAD.unpack_from(self._kept, at)[0]
            if end > len(self._kept):
                break
            found.append(pickle.loads(memoryview(self._kept)[start:end]))
            at = end
        del self._kept[:at]
        return found

    def close(self) -> None:
        self._end.close()
