import socket
from typing import Any

import pytest

from slurm_rl.launch.machines.link import Link, LinkClosed, WrongSecret
from tests.slurm.cluster.waiting import wait_until


def pair(head_secret: str = "s" * 16, other_secret: str = "s" * 16) -> tuple[Link, Link]:
    server = socket.create_server(("127.0.0.1", 0))
    there = socket.create_connection(server.getsockname())
    here, _ = server.accept()
    server.close()
    return Link(here, head_secret, is_head=True), Link(there, other_secret, is_head=False)


def exchange(*links: Link, num_messages: int = 1) -> list[list[dict[str, Any]]]:
    """Return the messages that each side received, once each has this many."""
    heard: list[list[dict[str, Any]]] = [[] for _ in links]

    def are_enough() -> bool:
        for link, messages in zip(links, heard, strict=True):
            messages += link.poll()
        return sum(map(len, heard)) >= num_messages

    wait_until(are_enough, f"{num_messages} messages", every_s=0.001)
    return heard


def test_messages_arrive_complete_and_in_order() -> None:
    head, other = pair()
    for number in range(50):
        head.send("count", number=number)
    other.send("text", text="ä" * 300_000 + "\n")
    from_other, from_head = exchange(head, other, num_messages=51)
    assert from_head == [{"kind": "count", "number": number} for number in range(50)]
    assert from_other == [{"kind": "text", "text": "ä" * 300_000 + "\n"}]
    assert not head.has_unsent


def test_messages_with_wrong_secret_are_ignored() -> None:
    head, other = pair(other_secret="t" * 16)
    other.send("hello")
    with pytest.raises(WrongSecret, match="SLURM_RL_TOKEN"):
        exchange(head, other)


def test_replayed_conversation_is_rejected() -> None:
    """A third party repeats the bytes of an authenticated client."""
    head, other = pair()
    recorded = bytearray()
    other._sock = _Recorder(other._sock, recorded)  # type: ignore[assignment]
    other.send("signal", number=9)
    assert exchange(head, other)[0] == [{"kind": "signal", "number": 9}]
    fresh, thief = pair()
    thief._sock.sendall(bytes(recorded))
    with pytest.raises(WrongSecret):
        exchange(fresh)


class _Recorder:
    """A socket that records sent bytes."""

    def __init__(self, sock: socket.socket, kept: bytearray) -> None:
        self._sock, self._kept = sock, kept

    def send(self, data: bytearray) -> int:
        number = self._sock.send(data)
        self._kept += data[:number]
        return number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"slurm_rl/1\n" + b"n" * 32 + b"\xff\xff\xff\xff"])
def test_invalid_message_ends_connection(said: bytes) -> None:
    head, other = pair()
    other._sock.send(said)
    with pytest.raises(LinkClosed):
        exchange(head)


def test_end_is_reported_after_earlier_messages() -> None:
    head, other = pair()
    other.send("beat")
    exchange(head, other)
    other.send("exited", attempt=1, status=0)
    other.poll()
    other.close()
    assert exchange(head) == [[{"kind": "exited", "attempt": 1, "status": 0}]]
    with pytest.raises(LinkClosed):
        exchange(head)
