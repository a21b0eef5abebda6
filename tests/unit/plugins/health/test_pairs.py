"""The search for slow nodes by pairs, for sockets and for all-reduces, and the client over real sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks import preflight
from slurm_rl.plugins.health import pairs_node
from slurm_rl.plugins.health.fabric import ON_GPUS
from slurm_rl.plugins.health.leader import TOKEN_VARIABLE, Leader, lead_pairs
from slurm_rl.plugins.health.pairs import SOCKETS, Scale, find_suspects, judge_pairs, measure_rounds, second_round

NODES = ["n1", "n2", "n3", "n4", "n5"]


def search(hosts: list[str], rate_of: Callable[[set[str]], float | None], scale: Scale = SOCKETS) -> str:
    """Return the states of all hosts."""
    first, second = measure_rounds(lambda pairs: {pair: rate_of(set(pair)) for pair in pairs}, hosts, scale)
    return " ".join(verdict.state for verdict in judge_pairs(hosts, first, second, scale=scale).values())


@pytest.mark.parametrize("number", [3, 4, 5])
@pytest.mark.parametrize("rate", [20.0, None])
def test_pairs_names_a_slow_node_but_not_its_partner(number: int, rate: float | None) -> None:
    for slow in NODES[:number]:
        states = search(NODES[:number], lambda pair, slow=slow: rate if slow in pair else 900.0)  # type: ignore[misc]
        assert states == " ".join("bad" if node == slow else "ok" for node in NODES[:number]), slow


@pytest.mark.parametrize(
    ("scale", "slow", "rate", "usual", "states"),
    [
        (SOCKETS, {"n1", "n2"}, None, 900.0, "warn warn ok ok"),  # a cut link
        (SOCKETS, set(), None, 3.0, "ok ok ok ok"),  # slow for all
        (SOCKETS, {"n2"}, 60.0, 9000.0, "ok ok ok ok"),  # fast enough
        (ON_GPUS, {"n3"}, 150.0, 380.0, "ok ok bad ok"),
        (ON_GPUS, {"n3"}, None, 380.0, "ok ok bad ok"),
        (ON_GPUS, {"n3", "n4"}, 150.0, 380.0, "ok ok warn warn"),
        (ON_GPUS, {"n3", "n4"}, 250.0, 380.0, "ok ok warn warn"),
        (ON_GPUS, {"n3", "n4"}, 300.0, 380.0, "ok ok ok ok"),
    ],
)
def test_pairs_judges_by_scale(scale: Scale, slow: set[str], rate: float | None, usual: float, states: str) -> None:
    assert search(NODES[:4], lambda pair: rate if slow and slow <= pair else usual, scale) == states


def test_pairs_without_a_healthy_node_has_no_second_round() -> None:
    silent: dict[tuple[str, str], float | None] = {("n1", "n2"): None, ("n3", "n4"): None}
    assert find_suspects(silent) == NODES[:4] and second_round(silent) == []
    assert {verdict.state for verdict in judge_pairs(NODES[:4], silent, {}).values()} == {"warn"}


@contextmanager
def clients(leader: Leader, names: list[str], token: str = "") -> Iterator[Callable[[], bool]]:
    env = {**os.environ, TOKEN_VARIABLE: token or leader.token}
    argv = [sys.executable, "-I", "-S", str(Path(pairs_node.__file__)), "127.0.0.1", str(leader.port)]
    with ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen([*argv, name], env=env)) for name in names]
        try:
            yield lambda: started[0].poll() is not None
        finally:
            leader.close()
            for node in started:
                node.wait(60)


def test_pairs_over_sockets_judges_all_nodes() -> None:
    leader = Leader(num_bytes=1 << 20)
    with clients(leader, NODES[:3]) as has_ended:
        found = lead_pairs(leader, NODES[:3], has_ended)
    assert list(found) == NODES[:3] and "unknown" not in {verdict.state for verdict in found.values()}


def test_leader_rejects_a_client_with_a_bad_token() -> None:
    leader = Leader(num_bytes=1 << 16)
    with clients(leader, ["n1", "n2"]) as has_ended, clients(leader, ["n3"], token="other"):
        leader.accept(2, has_ended, within_s=60)
        leader.accept(3, has_ended, within_s=0.5)
        assert sorted(leader.nodes) == ["n1", "n2"]
        rate = leader.measure([("n1", "n2")])["n1", "n2"]
        assert rate is not None and rate > 0
    found = judge_pairs(["n1", "n2", "n3"], {("n1", "n2"): rate}, {}, missing=["n3"])
    assert [found[node].state for node in ("n1", "n2", "n3")] == ["ok", "ok", "bad"]


def test_benchmark_judges_simulated_nodes_and_times_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["preflight", "--nodes", "2", "3", "--sockets"])
    preflight.main()
    two, three = capsys.readouterr().out.splitlines()
    assert "2 nodes: " in two and ", pairs of 1 MiB in " in three
