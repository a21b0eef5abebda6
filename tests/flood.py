"""Strangers who come to a port by the thousand: idle, slow, and talking nonsense. `python -m tests.flood PORT` is one.

It prints a line when all have come, holds what is not taken from it, and ends with its standard input.
"""

from __future__ import annotations

import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NUM_CONNECTIONS = 5000
_NUM_ADDRESSES = 20
_DEADLINE_S = 120.0
# Of each kind as many: silence; a head without an end; no HTTP; a body that never comes; a head too long; an upgrade.
_SAID = (
    b"",
    b"POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Le",
    b"\x16\x03\x01 no words of this port\r\n\r\n",
    b"POST /get_reward HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
    b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000,
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
)


@contextmanager
def flood(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Strangers from 20 addresses of the loopback net, who stay until the block ends."""
    argv = [sys.executable, "-m", "tests.flood", str(port)]
    root = Path(__file__).parent.parent
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def have_all_come(process: subprocess.Popen[bytes]) -> bool:
    """Does not wait."""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        if not selector.select(0):
            return False
    assert process.stdout is not None
    assert int(process.stdout.readline()) == NUM_CONNECTIONS
    return True


def memory_mb(pid: int) -> float:
    """What the process holds in memory."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1000


def _come(port: int) -> list[socket.socket]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    selector, held = selectors.DefaultSelector(), []
    for number in range(NUM_CONNECTIONS):
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((f"127.0.0.{2 + number % _NUM_ADDRESSES}", 0))
        sock.connect_ex(("127.0.0.1", port))
        selector.register(sock, selectors.EVENT_WRITE, _SAID[number % len(_SAID)])
        held.append(sock)
    deadline = time.monotonic() + _DEADLINE_S
    while selector.get_map() and time.monotonic() < deadline:
        for key, _ in selector.select(1):
            assert isinstance(key.fileobj, socket.socket)
            selector.unregister(key.fileobj)
            with suppress(OSError):  # it was taken away already
                key.fileobj.send(key.data)
    assert not selector.get_map(), f"{len(selector.get_map())} could not connect"
    return held


if __name__ == "__main__":
    held = _come(int(sys.argv[1]))
    print(len(held), flush=True)
    sys.stdin.read()
