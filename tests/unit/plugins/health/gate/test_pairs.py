"""The test of pairs: who is blamed, and the nodes' program over real sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks import preflight
from slurm_rl.plugins.health.gate import pairs_node
from slurm_rl.plugins.health.gate.pairs import Pair, find_suspects, first_round, judge_pairs, second_round
from slurm_rl.plugins.health.measure_pairs import Leader, lead

_NODES = ["n1", "n2", "n3", "n4", "n5"]


def _run(hosts: list[str], rate_of: Callable[[str, str], float | None]) -> dict[str, str]:
    first: dict[Pair, float | None] = {pair: rate_of(*pair) for pairs in first_round(hosts) for pair in pairs}
    second: dict[Pair, float | None] = {pair: rate_of(*pair) for pairs in second_round(first) for pair in pairs}
    return {node: verdict.state for node, verdict in judge_pairs(hosts, first, second).items()}


@pytest.mark.parametrize("number", [3, 4, 5])
@pytest.mark.parametrize("rate", [20.0, None])
def test_a_slow_node_is_named_and_its_partner_cleared(number: int, rate: float | None) -> None:
    for slow in _NODES[:number]:
        found = _run(_NODES[:number], lambda *pair, slow=slow: rate if slow in pair else 900.0)
        assert found == {node: "bad" if node == slow else "ok" for node in _NODES[:number]}, slow


def test_a_cut_pair_is_a_link_and_no_node_is_blamed() -> None:
    found = _run(_NODES[:4], lambda *pair: None if set(pair) == {"n1", "n2"} else 900.0)
    assert found == {"n1": "warn", "n2": "warn", "n3": "ok", "n4": "ok"}


def test_networks_that_are_alike_or_have_plenty_are_well() -> None:
    assert set(_run(_NODES, lambda *pair: 3.0).values()) == {"ok"}
    assert set(_run(_NODES, lambda *pair: 60.0 if "n2" in pair else 9000.0).values()) == {"ok"}


def test_where_no_node_is_well_there_is_no_second_round() -> None:
    silent: dict[Pair, float | None] = {("n1", "n2"): None, ("n3", "n4"): None}
    assert find_suspects(silent) == _NODES[:4]
    assert second_round(silent) == []
    assert {verdict.state for verdict in judge_pairs(_NODES[:4], silent, {}).values()} == {"warn"}


@contextmanager
def _nodes(leader: Leader, names: list[str]) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "SLURM_RL_PAIRS": leader.word}
    argv = [sys.executable, "-I", "-S", str(Path(pairs_node.__file__)), "127.0.0.1", str(leader.port)]
    with ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen([*argv, name], env=env, text=True)) for name in names]
        try:
            yield started[0]
        finally:
            leader.close()
            for node in started:
                node.wait(60)


def test_nodes_measure_each_other_over_sockets_and_end_with_the_leader() -> None:
    leader = Leader("secret", num_bytes=1 << 20)
    with _nodes(leader, _NODES[:3]) as step:
        found = lead(leader, _NODES[:3], step)
    # How fast is this machine's affair.
    assert {node: verdict.state != "unknown" for node, verdict in found.items()} == dict.fromkeys(_NODES[:3], True)


def test_a_node_that_does_not_come_is_missing_and_a_stranger_is_not_let_in() -> None:
    leader, stranger = Leader("secret", num_bytes=1 << 16), "another word"
    with _nodes(leader, ["n1", "n2"]) as step:
        env = {**os.environ, "SLURM_RL_PAIRS": stranger}
        argv = [sys.executable, "-I", "-S", str(Path(pairs_node.__file__)), "127.0.0.1", str(leader.port), "n3"]
        with subprocess.Popen(argv, env=env) as other:
            assert leader.meet(["n1", "n2"], step, within_s=60) == []
            assert leader.meet(["n3"], step, within_s=0.5) == ["n3"]
            rate = leader.measure([("n1", "n2")])["n1", "n2"]
            assert rate is not None
            assert rate > 0
            leader.close()
            other.wait(60)
    found = judge_pairs(["n1", "n2", "n3"], {("n1", "n2"): rate}, {}, missing=["n3"])
    assert [found[node].state for node in ("n1", "n2", "n3")] == ["ok", "ok", "bad"]


def test_the_benchmark_judges_simulated_nodes_and_times_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["preflight", "--nodes", "2", "3", "--sockets"])
    preflight.main()
    two, three = capsys.readouterr().out.splitlines()
    assert "2 nodes: " in two
    assert ", pairs of 1 MiB in " in three
