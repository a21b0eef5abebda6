"""The search for slow nodes by pairs, and the benchmark of the judge."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import preflight
from slurm_rl.plugins.health.fabric import ON_CPUS, ON_GPUS
from slurm_rl.plugins.health.pairs import Scale, find_suspects, judge_pairs, measure_rounds, second_round

NODES = ["n1", "n2", "n3", "n4", "n5"]


def search(hosts: list[str], rate_of: Callable[[set[str]], float | None], scale: Scale = ON_GPUS) -> str:
    """Return the states of all hosts."""
    first, second = measure_rounds(lambda pairs: {pair: rate_of(set(pair)) for pair in pairs}, hosts, scale)
    return " ".join(verdict.state for verdict in judge_pairs(hosts, first, second, scale).values())


@pytest.mark.parametrize("number", [3, 4, 5])
@pytest.mark.parametrize("rate", [20.0, None])
def test_pairs_names_a_slow_node_but_not_its_partner(number: int, rate: float | None) -> None:
    for slow in NODES[:number]:
        states = search(NODES[:number], lambda pair, slow=slow: rate if slow in pair else 900.0)  # type: ignore[misc]
        assert states == " ".join("bad" if node == slow else "ok" for node in NODES[:number]), slow


@pytest.mark.parametrize(
    ("scale", "slow", "rate", "usual", "states"),
    [
        (ON_CPUS, {"n1", "n2"}, None, 0.9, "warn warn ok ok"),  # a cut link
        (ON_CPUS, set(), None, 0.003, "ok ok ok ok"),  # slow for all
        (ON_CPUS, {"n2"}, 0.06, 9.0, "ok ok ok ok"),  # fast enough
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
    assert find_suspects(silent, ON_GPUS) == NODES[:4] and second_round(silent, ON_GPUS) == []
    assert {verdict.state for verdict in judge_pairs(NODES[:4], silent, {}, ON_GPUS).values()} == {"warn"}


def test_benchmark_judges_simulated_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["preflight", "--nodes", "2", "3"])
    preflight.main()
    two, three = capsys.readouterr().out.splitlines()
    assert "2 nodes: " in two and "3 nodes: " in three
