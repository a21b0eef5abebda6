"""The controller's side of measurements between nodes: one srun starts a client on each node, the leader asks them."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TextIO

_CONNECT_S = 60.0
_END_S = 5.0
TOKEN_VARIABLE = "SLURM_RL_MEASURE_TOKEN"
"""Environment variable with the token that authenticates the clients."""


class Leader:
    """Holds the connections of the nodes and asks them to measure."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self.listener = socket.create_server(("", 0), backlog=1024)
        self.port = int(self.listener.getsockname()[1])
        self.nodes: dict[str, tuple[socket.socket, TextIO, str, int]] = {}
        """Node -> its connection, address and port."""

    def close(self) -> None:
        self.listener.close()
        for sock, stream, _, _ in self.nodes.values():
            with contextlib.suppress(OSError):
                stream.close()
            sock.close()

    def accept(self, number: int, has_ended: Callable[[], bool], within_s: float = _CONNECT_S) -> None:
        """Wait until so many nodes have connected, their step has ended, or the time is over."""
        deadline = time.monotonic() + within_s
        self.listener.settimeout(0.2)
        while len(self.nodes) < number and time.monotonic() < deadline and not has_ended():
            with contextlib.suppress(TimeoutError):
                sock, (address, *_) = self.listener.accept()
                self._authenticate(sock, str(address))

    def _authenticate(self, sock: socket.socket, address: str) -> None:
        sock.settimeout(_END_S)
        stream = sock.makefile("rw", encoding="utf-8")
        try:
            hello = json.loads(stream.readline(1000))
            if not secrets.compare_digest(str(hello["token"]), self.token):
                raise ValueError("bad token")
            self.nodes[str(hello["node"])] = (sock, stream, address, int(hello["port"]))
        except (OSError, ValueError, KeyError, TypeError):
            sock.close()

    def ask(self, questions: Mapping[str, Mapping[str, Any]], within_s: float) -> dict[str, dict[str, Any] | None]:
        """Send a question to each node at once and return the answers; None for a timeout."""
        for node, question in questions.items():
            with contextlib.suppress(OSError):
                self.nodes[node][1].write(json.dumps(question) + "\n")
                self.nodes[node][1].flush()
        deadline = time.monotonic() + within_s
        return {node: self._read(node, deadline) for node in questions}

    def _read(self, node: str, deadline: float) -> dict[str, Any] | None:
        sock, stream, _, _ = self.nodes[node]
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            answer = json.loads(stream.readline(4000))
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None


@contextlib.contextmanager
def running(
    argv: Sequence[str], env: Mapping[str, str], log: BinaryIO | int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """Run a step, and terminate it if its clients do not end with the leader's connections."""
    step = subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
    try:
        yield step
    finally:
        step.terminate()
        try:
            step.wait(_END_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()
