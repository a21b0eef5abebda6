"""Client on a node for the measurement of pairs. Standard library only; runs as a file in any Python.

    python -I pairs_node.py <leader's host> <leader's port> <name of this node>

Each question {"to": [host, port], "num_bytes": n, "deadline_s": s} gets the answer {"received_s": s, "sent_s": s} or
{"error": text}. Both directions are timed, since sending may be slow where receiving is not.
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
_TOKEN = os.environ.get("SLURM_RL_MEASURE_TOKEN", "").encode()
_CONNECT_S = 10.0


def send(sock: socket.socket, num_bytes: int, deadline: float) -> None:
    view = memoryview(_CHUNK)
    while num_bytes > 0:
        sock.settimeout(seconds_left(deadline))
        num_bytes -= sock.send(view[: min(num_bytes, len(view))])


def receive(sock: socket.socket, num_bytes: int, deadline: float) -> None:
    buffer = bytearray(len(_CHUNK))
    while num_bytes > 0:
        sock.settimeout(seconds_left(deadline))
        received = sock.recv_into(buffer, min(num_bytes, len(buffer)))
        if received == 0:
            raise ConnectionError("the other node closed the connection")
        num_bytes -= received


def seconds_left(deadline: float) -> float:
    """Return the time until the deadline; raise TimeoutError after it, so that a slow transfer ends as well."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("too slow")
    return seconds


def serve(listener: socket.socket) -> None:
    """Answer other nodes until this process ends."""
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock,), daemon=True).start()


def answer(sock: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError), sock:
        sock.settimeout(_CONNECT_S)
        token, num_bytes, deadline_s = sock.makefile("rb", buffering=0).readline(200).split()
        if token != _TOKEN:
            return
        deadline = time.monotonic() + float(deadline_s)
        send(sock, int(num_bytes), deadline)
        receive(sock, int(num_bytes), deadline)
        sock.sendall(b"!")


def measure(host: str, port: int, num_bytes: int, deadline_s: float) -> dict[str, object]:
    """Time a transfer in both directions."""
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=deadline_s) as sock:
            sock.sendall(b"%s %d %g\n" % (_TOKEN, num_bytes, deadline_s))
            start = time.monotonic()
            receive(sock, num_bytes, began + deadline_s)
            turn = time.monotonic()
            send(sock, num_bytes, began + deadline_s)
            receive(sock, 1, began + deadline_s)
            return {"received_s": turn - start, "sent_s": time.monotonic() - turn}
    except OSError as error:
        return {"error": f"{error.strerror or error} after {time.monotonic() - began:.1f} s"}


def main(leader_host: str, leader_port: str, name: str) -> None:
    listener = socket.create_server(("", 0))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    with socket.create_connection((leader_host, int(leader_port)), timeout=_CONNECT_S) as leader:
        leader.settimeout(None)
        stream = leader.makefile("rw", encoding="utf-8")
        hello = {"token": _TOKEN.decode(), "node": name, "port": listener.getsockname()[1]}
        stream.write(json.dumps(hello) + "\n")
        stream.flush()
        for line in stream:  # ends when the leader closes the connection
            question = json.loads(line)
            host, port = question["to"]
            result = measure(host, port, question["num_bytes"], question["deadline_s"])
            stream.write(json.dumps(result) + "\n")
            stream.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
