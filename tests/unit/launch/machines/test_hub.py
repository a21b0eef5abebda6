from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl import __version__
from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.launch.machines.hub import Hub
from slurm_rl.launch.machines.link import Link, LinkClosed
from slurm_rl.launch.machines.place import HeadPlace, listen
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster.waiting import wait_until

SECRET = "s" * 16
CONFIG: dict[str, Any] = {"name": "a", "cluster": {"num_nodes": 3}, "run_dir": "/x"}


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    place = HeadPlace(free_port(), "word", ("h", "first", "second"))
    hub = Hub(RunDir(tmp_path), 3, place, SECRET, "job", CONFIG)
    hub.open()
    yield hub
    hub.say_goodbye()


_clients: list[Client] = []  # keeps connections open


class Client:
    """A machine that only sends its greeting."""

    def __init__(self, hub: Hub, name: str, rank: int | None = None, **other: Any) -> None:
        self.hub = hub
        self.link = Link(socket.create_connection(("127.0.0.1", hub._place.port)), SECRET, is_head=False)
        fields = {"version": __version__, "rank": rank, "name": name, "num_nodes": None, "config": CONFIG}
        self.link.send("hello", **(fields | other))
        _clients.append(self)

    def hear(self) -> dict[str, Any]:
        """Return the head's answer."""

        def answers() -> list[dict[str, Any]]:
            self.hub.poll()
            return [message for message in self.link.poll() if message["kind"] != "beat"]

        return wait_until(answers, "an answer", every_s=0.001)[0]

    def join(self) -> int:
        answer = self.hear()
        assert answer["kind"] == "welcome", answer
        self.link.send("ready", shares_run_dir=False)

        def is_ready() -> bool:
            self.link.poll()
            self.hub.poll()
            return self.hub.members[rank].is_ready

        rank = int(answer["rank"])
        wait_until(is_ready, "to be ready", every_s=0.001)
        return rank


def test_hub_waits_for_all_ranks_and_refuses_more(hub: Hub) -> None:
    assert Client(hub, "a", rank=1).join() == 1
    with pytest.raises(BringUpError, match=r"missing: node 2 \(second\); joined: a \(127.0.0.1\) as node 1"):
        hub.wait_for_all(0.0, lambda: False)
    hub.wait_for_all(3600.0, lambda: True)  # a stop ends it
    assert Client(hub, "b").join() == 2
    assert hub.missing() == []
    hub.wait_for_all(0.0, lambda: False)
    assert "already has all of its 3 nodes" in Client(hub, "c").hear()["cause"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"rank": 3}, "node 3 of 3"),
        ({"rank": 1}, "node 1 is first (127.0.0.1)"),
        ({"version": "0.0.0"}, "the same version of slurm_rl; got 0.0.0"),
        ({"num_nodes": 2}, "agree on the number of nodes; got 2, on the head 3"),
        ({"config": CONFIG | {"name": "b"}}, "name=b, on the head a"),
        ({"name": "first"}, "connected already"),
    ],
)
def test_foreign_machine_is_rejected_with_reason(hub: Hub, said: dict[str, Any], why: str) -> None:
    first = Client(hub, "first", rank=1)
    assert first.join() == 1
    answer = Client(hub, said.pop("name", "late"), **said).hear()
    assert answer["kind"] == "refused" and why in answer["cause"]
    assert set(hub.members) == {1}


def test_returning_machine_keeps_rank(hub: Hub) -> None:
    clients = [Client(hub, name) for name in "ab"]
    ranks = {name: client.join() for name, client in zip("ab", clients, strict=True)}
    for client in clients:
        client.link.close()

    def are_lost() -> bool:
        hub.poll()
        return sorted(hub.lost.values()) == ["a (127.0.0.1)", "b (127.0.0.1)"]

    wait_until(are_lost, "both to be missed", every_s=0.001)
    again = {name: Client(hub, name).join() for name in "ba"}
    assert again == ranks and hub.lost == {}


def test_connection_with_wrong_secret_changes_nothing(hub: Hub) -> None:
    sock = socket.create_connection(("127.0.0.1", hub._place.port))
    link = Link(sock, "t" * 16, is_head=False)
    link.send("hello", version=__version__, rank=1, name="x", num_nodes=None, config=CONFIG)

    def talk() -> None:
        hub.poll()
        link.poll()

    with pytest.raises((LinkClosed, ConfigError)):
        wait_until(talk, "to be turned away", every_s=0.001)
    assert hub.members == {} and hub.lost == {}


def test_used_port_is_reported_before_start(hub: Hub) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.head_port must be free"):
        listen(hub._place.port)
