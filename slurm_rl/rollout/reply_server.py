"""Single replies over a connection of their own: the engine's side of rl/rollout/replies.py.

    driver  -> [ReplyRequest(...), ...]                       as they come up
    engine  -> ([(episode, PackedReply), ...], [(episode, why), ...])   what has ended, and what cannot be done

A call of a Ray actor costs the driver much more than a message here (docs/benchmarks.md). Messages are pickled, so both
sides first prove that they know the key, which went by Ray: HMAC-SHA256 of two random numbers, one of each. Nothing is
unpickled before that.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from slurm_rl.rollout.reply_request import ReplyRequest
from slurm_rl.run_dir.strangers import Crowd
from slurm_rl.run_dir.wire import LINGER_S, Wire

if TYPE_CHECKING:
    from slurm_rl.rollout.dispatch import RolloutEngine

_LONGEST_WAIT_S = 60.0
"""For a reply; an engine that samples nothing in this time has no beat, and its node's agent finds it late."""
_PROVE_S = 30.0
_MOST_STRANGERS = 64
"""Who have not proven themselves yet; who holds most goes first."""
_FULL_S = 0.1
_NONCE_BYTES = 32


class ReplyAddress(NamedTuple):
    """Where an engine takes requests for single replies."""

    host: str
    port: int
    key: bytes
    """Known to whoever may ask the engine by Ray."""


class ReplyServer:
    """Takes connections for an engine, each in threads of its own."""

    def __init__(self, engine: RolloutEngine, host: str) -> None:
        self.engine = engine
        self.error: BaseException | None = None
        """What ended the sampling."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._address = ReplyAddress(host, self._listener.getsockname()[1], secrets.token_bytes(_NONCE_BYTES))
        self._strangers: Crowd[socket.socket] = Crowd()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="reply-connections", daemon=True).start()

    def address(self) -> ReplyAddress:
        """Raises what ended the sampling: whoever lost its connection asks here why."""
        if self.error is not None:
            raise self.error
        return self._address

    def _accept(self) -> None:
        while True:
            try:
                end, (peer, *_) = self._listener.accept()
            except OSError:  # nobody can be let in for now: this process has no descriptor left
                time.sleep(_FULL_S)
                continue
            with self._lock:
                self._strangers.add(end, peer)
                for stranger in self._strangers.choose(_MOST_STRANGERS):
                    with contextlib.suppress(OSError):
                        stranger.shutdown(socket.SHUT_RDWR)  # its thread closes it
            threading.Thread(target=self._serve, args=(end,), name="reply-requests", daemon=True).start()

    def _serve(self, end: socket.socket) -> None:
        with end, contextlib.suppress(OSError, EOFError):
            try:
                prove(end, self._address.key, is_engine=True)
            finally:
                with self._lock:
                    self._strangers.remove(end)
            _Client(self, Wire(end)).serve()


class _Client:
    """Who asks for replies over one connection, and alone gets them."""

    def __init__(self, server: ReplyServer, wire: Wire) -> None:
        self.server, self.wire, self.name = server, wire, uuid.uuid4().hex
        self._num_open = 0
        self._is_gone = False
        self._changed = threading.Condition()
        self._sending = threading.Lock()

    def serve(self) -> None:
        """Begin what comes in, until the other side is gone or the engine is broken."""
        threading.Thread(target=self._give, name="replies", daemon=True).start()
        try:
            while True:
                for requests in self.wire.receive():
                    try:
                        begun = [ReplyRequest(*request) for request in requests]
                        refused = self.server.engine.begin_replies(self.name, begun)
                    except BaseException as error:
                        self.server.error = error
                        return
                    with self._changed:
                        self._num_open += len(requests) - len(refused)
                        self._changed.notify()
                    if refused:
                        self._send(([], refused))
        finally:
            with self._changed:
                self._is_gone = True
                self._changed.notify()

    def _give(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self._changed:
                    # An engine that is asked while it has nothing to do would be late.
                    self._changed.wait_for(lambda: self._num_open > 0 or self._is_gone)
                    if self._is_gone:
                        return
                try:
                    replies = self.server.engine.take_replies(self.name, _LONGEST_WAIT_S, LINGER_S)
                except BaseException as error:
                    self.server.error = error
                    self.wire.shut_down()  # which ends the reading, too
                    return
                with self._changed:
                    self._num_open -= len(replies)
                if replies:
                    self._send((replies, []))

    def _send(self, message: object) -> None:
        with self._sending:
            self.wire.send(message)


def prove(end: socket.socket, key: bytes, *, is_engine: bool) -> None:
    """Know the other side, and be known by it.

    Raises:
        OSError, EOFError: it knows another key, is gone, or says nothing for half a minute.
    """
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.settimeout(_PROVE_S)
    own = secrets.token_bytes(_NONCE_BYTES)
    end.sendall(own)
    theirs = _receive(end, _NONCE_BYTES)
    end.sendall(_sign(key, is_engine, own, theirs))
    if not hmac.compare_digest(_receive(end, _NONCE_BYTES), _sign(key, not is_engine, theirs, own)):
        raise PermissionError("the other side of a connection for replies knows another key")
    end.settimeout(None)


def _sign(key: bytes, is_engine: bool, own: bytes, theirs: bytes) -> bytes:
    return hmac.digest(key, (b"engine" if is_engine else b"driver") + own + theirs, "sha256")


def _receive(end: socket.socket, size: int) -> bytes:
    deadline = time.monotonic() + _PROVE_S  # for all of it: one byte now and then is no answer
    found = b""
    while len(found) < size:
        part = end.recv(size - len(found))
        if not part or time.monotonic() > deadline:
            raise EOFError
        found += part
    return found
