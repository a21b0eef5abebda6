"""Connection between the head and another machine: signed JSON messages. Standard library only.

Both sides send a random number. These and the shared secret give the key of the connection, which signs each message
(HMAC-SHA256) with its sequence number and direction. A peer without the secret cannot send, change, repeat or drop a
message unnoticed. Messages are not encrypted and contain no secrets. (multiprocessing.connection authenticates only the
start of a connection, and its accept and recv block on a peer that is silent.)

    frame = length of the rest (4 bytes) + signature (32 bytes) + JSON
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
from types import UnionType
from typing import Any, cast

from slurm_rl.errors import BringUpError, ConfigError

_NONCE_BYTES = 32
_MAC_BYTES = 32
# A config with all fields has less than 100 kB.
_MOST_BYTES = 4_000_000
_READS_AT_ONCE = 16
_MAGIC = b"slurm_rl/1\n"
_FIELDS: dict[str, dict[str, type | UnionType]] = {
    # Both sides.
    "proof": {},
    "beat": {},
    # To the head.
    "hello": {"version": str, "rank": int | None, "name": str, "num_nodes": int | None, "config": dict},
    "ready": {"shares_run_dir": bool},
    "notice": {"signal": str},
    "record": {"attempt": int, "name": str, "content": dict},
    "event": {"row": dict},
    "exited": {"attempt": int, "status": int},
    # From the head.
    "welcome": {"rank": int, "num_nodes": int, "run_dir": str, "job_key": str, "word": str},
    "refused": {"cause": str, "is_final": bool},
    "start": {"attempt": int, "hosts": list},
    "file": {"attempt": int, "name": str, "content": dict},
    "signal": {"number": int},
    "end": {"state": str, "exit_code": int, "cause": str | None},
}
"""Message kinds between head and machines, with their required fields."""


class LinkClosed(BringUpError):
    """The peer has closed the connection, or is not ours."""


class WrongSecret(ConfigError):
    """The other side has another secret."""


class Link:
    """One side of a connection. Nothing blocks: `send` queues, `poll` transfers."""

    def __init__(self, sock: socket.socket, secret: str, *, is_head: bool) -> None:
        self._sock, self._secret, self._is_head = sock, secret, is_head
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = str(sock.getpeername()[0])
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._key: bytes | None = None
        self._incoming, self._outgoing = bytearray(), bytearray(_MAGIC + self._nonce)
        self._waiting: list[dict[str, Any]] = []
        self._num_sent = self._num_received = 0

    def send(self, kind: str, **fields: Any) -> None:
        """Queue a message."""
        self._waiting.append({"kind": kind, **fields})

    def poll(self) -> list[dict[str, Any]]:
        """Send queued messages as far as the network accepts them, and return complete received ones.

        Raises:
            LinkClosed: the connection is closed.
            WrongSecret: a signature is wrong.
        """
        is_over = self._read()
        if self._key is None:
            self._take_nonce()
        messages = list(self._frames()) if self._key else []
        if self._key is not None:
            for message in self._waiting:
                self._outgoing += self._frame(message)
            self._waiting.clear()
        self._write()
        if is_over and not messages:
            raise LinkClosed("a machine of the run must stay connected", seen=f"{self.peer} closed the connection")
        return messages

    def close(self) -> None:
        self._sock.close()

    @property
    def has_unsent(self) -> bool:
        return bool(self._outgoing or self._waiting)

    def _read(self) -> bool:
        """Return True if the peer has closed the connection."""
        # Unread data waits in the kernel until the received part is parsed: memory is bounded by one message.
        for _ in range(_READS_AT_ONCE):
            try:
                data = self._sock.recv(65536)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not data:
                return True
            self._incoming += data
        return False

    def _write(self) -> None:
        while self._outgoing:
            try:
                sent = self._sock.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkClosed("a machine of the run must stay connected", seen=f"{self.peer}: {error}") from None
            del self._outgoing[:sent]

    def _take_nonce(self) -> None:
        begin = bytes(self._incoming[: len(_MAGIC)])
        if not _MAGIC.startswith(begin):
            raise LinkClosed("only slurm_rl must answer at the head's port", seen=f"{self.peer} sent {begin[:20]!r}")
        end = len(_MAGIC) + _NONCE_BYTES
        if len(self._incoming) < end:
            return
        other = bytes(self._incoming[len(_MAGIC) : end])
        del self._incoming[:end]
        pair = self._nonce + other if self._is_head else other + self._nonce
        self._key = hmac.new(self._secret.encode(), pair, hashlib.sha256).digest()
        # It proves the secret to the peer.
        self._waiting.insert(0, {"kind": "proof"})

    def _frame(self, message: dict[str, Any]) -> bytes:
        body = json.dumps(message, allow_nan=False).encode()
        signature = self._sign(body, self._num_sent, from_head=self._is_head)
        self._num_sent += 1
        return struct.pack("!I", _MAC_BYTES + len(body)) + signature + body

    def _sign(self, body: bytes, number: int, *, from_head: bool) -> bytes:
        assert self._key is not None
        place = struct.pack("!?Q", from_head, number)
        return hmac.new(self._key, place + body, hashlib.sha256).digest()

    def _parse(self, body: bytes) -> dict[str, Any]:
        try:
            message = json.loads(body)
            fault = find_fault(message)
        except (ValueError, RecursionError) as error:
            fault = f"no JSON ({type(error).__name__})"
        if fault is not None:
            raise LinkClosed(
                "a machine of the run must use messages of this version of slurm_rl",
                seen=f"{fault}, from {self.peer}",
                action="install one version on all machines",
            )
        return cast(dict[str, Any], message)

    def _frames(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(self._incoming) >= 4:
            (length,) = struct.unpack("!I", self._incoming[:4])
            if not _MAC_BYTES <= length <= _MOST_BYTES:
                raise LinkClosed("a message must be of a known length", seen=f"{length} bytes from {self.peer}")
            if len(self._incoming) < 4 + length:
                break
            signature = bytes(self._incoming[4 : 4 + _MAC_BYTES])
            body = bytes(self._incoming[4 + _MAC_BYTES : 4 + length])
            del self._incoming[: 4 + length]
            expected = self._sign(body, self._num_received, from_head=not self._is_head)
            if not hmac.compare_digest(signature, expected):
                raise WrongSecret(
                    "every machine of a run must have the same SLURM_RL_TOKEN",
                    seen=f"another one on {self.peer}",
                    action="set the same secret on all of them",
                )
            self._num_received += 1
            message = self._parse(body)
            if message["kind"] != "proof":
                found.append(message)
        return found


def find_fault(message: Any) -> str | None:
    """Return why this is not a valid message; None if it is. Unknown kinds and fields are ignored.

    >>> find_fault({"kind": "notice", "signal": 15})
    "'notice' without a fitting 'signal'"
    """
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        return "nothing that has a kind"
    for name, kind in _FIELDS.get(message["kind"], {}).items():
        if name not in message or not isinstance(message[name], kind):
            return f"{message['kind']!r} without a fitting {name!r}"
    return None
