"""Who answers at all: a machine that refuses lives, one that comes back in time is waited for, silence has an end."""

from __future__ import annotations

import socket

import pytest

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm import reach
from slurm_rl.launch.slurm.reach import find_unreachable, wait_for_answers


class Network:
    """`n1` answers, `n2` refuses, `n3` is silent for its first `silences` tries."""

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


def test_one_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make(2, monkeypatch)
    assert wait_for_answers(ASKED, 600.0) == []
    # Whoever has answered is not asked again.
    assert sorted(network.tries) == ["n1", "n2", "n3", "n3", "n3"]


def test_silence_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    make(10**9, monkeypatch)
    assert wait_for_answers(ASKED, 0.0) == ["n3"]


def test_slurm_says_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make(10**9, monkeypatch)
    monkeypatch.setattr(reach, "run_slurm", lambda argv: "a1 n1\na2 n3\na2 n3\n")
    monkeypatch.setattr(reach, "slurmd_port", lambda: 6818)
    # Of a3 Slurm tells nothing.
    assert find_unreachable(["a1", "a2", "a3"], 0.0) == ["a2"]
    assert set(network.tries) == {"n1", "n3"}


def test_where_slurm_does_not_answer_nobody_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: list[str]) -> str:
        raise SlurmRLError("Slurm must answer")

    monkeypatch.setattr(reach, "run_slurm", refuse)
    assert find_unreachable(["a1"], 0.0) == []
