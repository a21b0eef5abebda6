"""Stand-in for Ray on one node: keeps this rank's value and answers the trainer over TCP.

It is called with the arguments of `ray start`: the head listens on --port and tracks the nodes, which register there.
Kills, stops and network cuts act as with Ray, at a hundredth of its cost.
"""

import json
import re
import socket
import sys
import threading
import time
from typing import Any

_JOIN_S = 60.0


def advance(step: int, value: float) -> float:
    """Return the next value of one rank; every value depends on all earlier ones."""
    return (value * 1.000001 + 1.0 / (step + 3)) % 1.0


class LightNode:
    """The server of one node."""

    def __init__(self, words: list[str]) -> None:
        options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
        rank = re.search(r"slurm_rl_node_(\d+)", options["resources"])
        assert rank is not None
        self.rank, self.ip, self.head = int(rank[1]), options["node-ip-address"], options.get("address")
        self.server = socket.create_server(("", int(options.get("port", 0))))
        self.addresses = {self.rank: [self.ip, self.server.getsockname()[1]]}

    def serve(self) -> None:
        if self.head is not None:
            self._join(self.head)
        while True:
            connection, _ = self.server.accept()
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _join(self, head: str) -> None:
        host, _, port = head.partition(":")
        deadline = time.monotonic() + _JOIN_S
        while True:
            try:
                with socket.create_connection((host, int(port)), timeout=5.0) as connection:
                    request(connection, {"joined": self.rank, "at": self.addresses[self.rank]})
                    return
            except OSError as error:
                if time.monotonic() > deadline:
                    sys.exit(f"the head must listen at {head}; {error}")
                time.sleep(0.5)

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw", encoding="ascii") as file:
            for line in file:
                asked = json.loads(line)
                if "joined" in asked:
                    self.addresses[asked["joined"]] = asked["at"]
                time.sleep(asked.get("seconds", 0.0))
                value = advance(asked["step"], asked["value"]) if "value" in asked else None
                file.write(json.dumps({"addresses": self.addresses, "value": value}) + "\n")
                file.flush()


def request(connection: socket.socket, question: dict[str, Any]) -> Any:
    send(connection, question)
    return receive(connection)


def send(connection: socket.socket, question: dict[str, Any]) -> None:
    connection.sendall(json.dumps(question).encode() + b"\n")


def receive(connection: socket.socket) -> Any:
    """Return the answer.

    Raises:
        OSError: no answer within the timeout.
    """
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            raise ConnectionResetError("the other side has gone")
        line += part
    return json.loads(line)


if __name__ == "__main__":
    LightNode(sys.argv[1:]).serve()
