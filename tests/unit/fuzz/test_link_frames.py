"""Any bytes on the head's port, signed or not, leave the head running."""

import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_rl import __version__
from slurm_rl.errors import ConfigError
from slurm_rl.launch.machines.hub import Hub, Member
from slurm_rl.launch.machines.link import _MAGIC, Link, LinkClosed
from slurm_rl.launch.machines.place import HeadPlace
from slurm_rl.run_dir.run_dir import RunDir
from tests.unit.fuzz.values import costs_at_most, json_values, mangled

SECRET = "s" * 16
BEGIN = _MAGIC + b"n" * 32
KINDS = st.sampled_from(["proof", "beat", "hello", "ready", "notice", "record", "event", "exited", "end", "another"])
FIELDS = ["version", "rank", "name", "num_nodes", "config", "shares_run_dir", "signal", "attempt", "content", "status"]
LIKELY = st.sampled_from([__version__, 1, 2, 3, True, None, "n", "\ud800", {"name": "a"}, {}, -1])
MESSAGES = st.fixed_dictionaries(
    {"kind": KINDS | json_values(1)},
    optional={name: LIKELY | json_values(2, allow_nan=False) for name in FIELDS},
)


@contextmanager
def linked(secret: str) -> Iterator[tuple[Link, Link]]:
    """Return both ends of a connection; the first is the head's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    with closing(Link(here, SECRET, is_head=True)) as head, closing(Link(there, secret, is_head=False)) as other:
        yield head, other


def hear(head: Link) -> list[dict[str, Any]]:
    """Read all messages until the other side closes."""
    heard: list[dict[str, Any]] = []
    while True:
        try:
            heard += head.poll()
        except (LinkClosed, ConfigError):
            return heard


@settings(max_examples=250, derandomize=True, deadline=None)
@given(st.binary(max_size=100) | st.just(BEGIN + b"\0\0\0\x28" + b"m" * 32 + b"{}{}{}{}").flatmap(mangled))
@example(BEGIN + b"\0\x03\r\x40" + b"m" * 200_000)
@example(BEGIN + b"\xff" * 100_000)
def test_frames_without_secret_are_ignored(data: bytes) -> None:
    with linked(SECRET) as (head, other), costs_at_most(1_000_000):
        other._sock.settimeout(5)
        other._sock.sendall(data)
        other._sock.shutdown(socket.SHUT_WR)
        assert hear(head) == []


@settings(max_examples=120, derandomize=True, deadline=None)
@given(
    st.lists(
        json_values(4).map(lambda tree: json.dumps(tree).encode()).flatmap(mangled) | st.binary(max_size=20), max_size=3
    )
)
@example([b"[" * 100_000])
@example([b'{"kind": "notice"}', b'{"kind": "notice", "signal": 9}', b'{"kind": "hello"}', b'{"kind": ["hello"]}'])
def test_frames_with_secret_are_messages(bodies: list[bytes]) -> None:
    with linked(SECRET) as (head, other):
        for link in (head, other, head, other):
            link.poll()
        for body in bodies:
            other._outgoing += _signed(other, body)
        other.poll()
        other._sock.shutdown(socket.SHUT_WR)
        assert all(isinstance(message["kind"], str) for message in hear(head))


def _signed(link: Link, body: bytes) -> bytes:
    signature = link._sign(body, link._num_sent, from_head=False)
    link._num_sent += 1
    return (len(signature) + len(body)).to_bytes(4, "big") + signature + body


@settings(max_examples=120, derandomize=True, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=5))
@example([{"kind": "hello", "version": __version__, "rank": 1, "name": "a", "num_nodes": None, "config": {}}] * 2)
@example([{"kind": "ready", "shares_run_dir": True}])
def test_head_survives_any_authenticated_message(messages: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder, linked(SECRET) as (head, other):
        hub = Hub(RunDir(Path(folder)), 3, HeadPlace(0, "word"), SECRET, "job", {"name": "a"})
        member = Member(head, 0.0, float("inf"))
        member.came_at = float("inf")
        hub._pending.append(member)
        for link in (head, other, head, other):
            link.poll()
        for message in messages:
            other.send(**message) if isinstance(message["kind"], str) else None
        other.poll()
        other._sock.shutdown(socket.SHUT_WR)
        while member in hub._pending or hub.members:
            hub.poll()
