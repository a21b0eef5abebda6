import socket

import pytest

from slurm_rl.launch.slurm import srun as reach
from slurm_rl.launch.slurm.srun import find_unreachable, wait_for_answers


class Network:
    """`n1` accepts, `n2` refuses, and `n3` times out `silences` times."""

    def __init__(self, silences: int) -> None:
        self.silences, self.tries = silences, list[str]()

    def create_connection(self, address: tuple[str, int], timeout: float) -> socket.socket:
        self.tries.append(address[0])
        if address[0] == "n2":
            raise ConnectionRefusedError
        if address[0] == "n3" and self.tries.count("n3") <= self.silences:
            raise TimeoutError
        return socket.socket()


def make(silences: int, monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network(silences)
    monkeypatch.setattr(socket, "create_connection", network.create_connection)
    return network


ASKED = {host: (host, 6818) for host in ("n1", "n2", "n3")}


def test_wait_for_answers_waits_for_returning_node(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make(2, monkeypatch)
    assert wait_for_answers(ASKED, 600.0) == []
    assert sorted(network.tries) == ["n1", "n2", "n3", "n3", "n3"]


def test_wait_for_answers_ends_at_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    make(10**9, monkeypatch)
    assert wait_for_answers(ASKED, 0.0) == ["n3"]


def test_find_unreachable_uses_addresses_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make(10**9, monkeypatch)
    monkeypatch.setattr(reach, "run_slurm", lambda argv: "a1 n1\na2 n3\na2 n3\n")
    monkeypatch.setattr(reach, "slurmd_port", lambda: 6818)
    # a3 is unknown to Slurm.
    assert find_unreachable(["a1", "a2", "a3"], 0.0) == ["a2"]
    assert set(network.tries) == {"n1", "n3"}
