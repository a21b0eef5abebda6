"""A node in the test of pairs: a script, run as a file by any Python, that imports the standard library alone.

    python -I pairs_node.py <host of the leader> <port> <name of this node>

It listens on a port of its own, tells the leader, and does what that says, a line of JSON each way:
{"to": [host, port], "num_bytes": n, "deadline_s": s} -> {"got_s": s, "sent_s": s} or {"error": why}. Both ways are
timed, since what slows a node's sending need not slow its receiving. Who does not know the word in SLURM_RL_PAIRS is
cut off.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time

_CHUNK = bytes(1 << 18)
_WORD = os.environ.get("SLURM_RL_PAIRS", "").encode()
_CONNECT_S = 10.0


def send(sock: socket.socket, num_bytes: int, deadline: float) -> None:
    view = memoryview(_CHUNK)
    while num_bytes > 0:
        sock.settimeout(left(deadline))
        num_bytes -= sock.send(view[: min(num_bytes, len(view))])


def receive(sock: socket.socket, num_bytes: int, deadline: float) -> None:
    buffer = bytearray(len(_CHUNK))
    while num_bytes > 0:
        sock.settimeout(left(deadline))
        got = sock.recv_into(buffer, min(num_bytes, len(buffer)))
        if got == 0:
            raise ConnectionError("the other node closed the connection")
        num_bytes -= got


def left(deadline: float) -> float:
    """A link that is only slow ends at the deadline, too."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("too slow")
    return seconds


def serve(listener: socket.socket) -> None:
    """Answer others until this process ends."""
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock,), daemon=True).start()


def answer(sock: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError), sock:
        sock.settimeout(_CONNECT_S)
        word, num_bytes, deadline_s = sock.makefile("rb", buffering=0).readline(200).split()
        if word != _WORD:
            return
        deadline = time.monotonic() + float(deadline_s)
        send(sock, int(num_bytes), deadline)
        receive(sock, int(num_bytes), deadline)
        sock.sendall(b"!")


def measure(host: str, port: int, num_bytes: int, deadline_s: float) -> dict[str, object]:
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=deadline_s) as sock:
            sock.sendall(b"%s %d %g\n" % (_WORD, num_bytes, deadline_s))
            start = time.monotonic()
            receive(sock, num_bytes, began + deadline_s)
            turn = time.monotonic()
            send(sock, num_bytes, began + deadline_s)
            receive(sock, 1, began + deadline_s)
            return {"got_s": turn - start, "sent_s": time.monotonic() - turn}
    except OSError as error:
        return {"error": f"{error.strerror or error} after {time.monotonic() - began:.1f} s"}


def main(host: str, port: str, name: str) -> None:
    listener = socket.create_server(("", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as leader:
        leader.settimeout(None)
        words = leader.makefile("rw", encoding="utf-8")
        hello = {"word": _WORD.decode(), "node": name, "port": listener.getsockname()[1]}
        words.write(json.dumps(hello) + "\n")
        words.flush()
        # The leader closes the connection at the end; the connection breaks with it.
        for line in words:
            asked = json.loads(line)
            peer, port_of_peer = asked["to"]
            words.write(json.dumps(measure(peer, port_of_peer, asked["num_bytes"], asked["deadline_s"])) + "\n")
            words.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
