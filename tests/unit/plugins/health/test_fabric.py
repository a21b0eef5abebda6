"""The verdict on fabric measurements, and measurements with real torch and gloo."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import preflight
from slurm_rl.plan.job import NODE_VARIABLE
from slurm_rl.plugins.health import fabric_node, fabric_rank
from slurm_rl.plugins.health.fabric import ON_CPUS, ON_GPUS, Scale, judge_compute, judge_fabric, judge_pairs, pair_up
from slurm_rl.plugins.health.script import FABRIC, parse_outputs
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests.plans import demo_plan

H100 = {"gpu": "NVIDIA H100 80GB HBM3", "tflops": 650.0, "within_gb_s": 460.0, "is_same": True}
NODES = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]


@pytest.mark.parametrize(
    ("changed", "state", "seen"),
    [
        ({}, "ok", "multiplies at 650 TFLOP/s; reduces within the node at 460 GB/s"),
        ({"tflops": 300.0}, "bad", "multiplies at 300 TFLOP/s, others 650"),
        ({"within_gb_s": 100.0}, "bad", "reduces within the node at 100 GB/s, others 460"),
        ({"is_same": False}, "bad", "a matrix product differs when it is repeated, or is not finite"),
        ({"is_right": False}, "bad", "an all-reduce within the node has a wrong sum"),
        ({"error": "RuntimeError: CUDA error: unspecified"}, "bad", "RuntimeError: CUDA error: unspecified"),
    ],
)
def test_judge_compute_compares_with_peers(changed: Mapping[str, Any], state: str, seen: str) -> None:
    found = judge_compute({"n1": H100, "n2": H100, "n3": {**H100, **changed}, "n4": H100}, ON_GPUS)
    assert (found["n3"].state, found["n3"].seen) == (state, seen)
    assert {found[node].state for node in ("n1", "n2", "n4")} == {"ok"}


def test_judge_compute_compares_with_data_sheet() -> None:
    slow = {**H100, "tflops": 400.0}
    found = judge_compute({"n1": slow, "n2": slow, "n3": slow}, ON_GPUS)
    assert {verdict.state for verdict in found.values()} == {"warn"}
    assert found["n1"].seen == "multiplies at 400 of at least 494 TFLOP/s"
    assert judge_compute({"n1": None, "n2": H100}, ON_GPUS)["n1"].seen == "it did not answer in time"


def test_judge_compute_tolerates_busy_cpus() -> None:
    answers = {node: {"tflops": rate} for node, rate in zip("abcd", (0.03, 0.02, 0.011, 0.005), strict=True)}
    assert [one.state for one in judge_compute(answers, ON_CPUS).values()] == ["ok", "ok", "ok", "bad"]


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(sorted(H100)), st.one_of(st.none(), st.booleans(), st.text(), st.floats())))
def test_judge_compute_survives_garbage(garbage: dict[str, Any]) -> None:
    found = judge_compute({"n1": garbage, "n2": H100, "n3": H100}, ON_GPUS)
    assert found["n2"].state == found["n3"].state == "ok"


@pytest.mark.parametrize("number", range(2, 8))
def test_pair_up_gives_each_node_different_partners(number: int) -> None:
    rounds = pair_up(number)
    assert all(len(set(chain(*pairs))) == 2 * len(pairs) for pairs in rounds)
    pairs = [pair for one in rounds for pair in one]
    assert len(pairs) == len(set(pairs))
    assert all(sum(node in pair for pair in pairs) >= min(3, number - 1) for node in range(number))


def search(hosts: list[str], rate_of: Callable[[set[str]], float | None], scale: Scale = ON_GPUS) -> str:
    """Return the states of all hosts."""
    pairs = [(hosts[first], hosts[second]) for one in pair_up(len(hosts)) for first, second in one]
    found = judge_pairs(hosts, {pair: rate_of(set(pair)) for pair in pairs}, scale)
    return " ".join(verdict.state for verdict in found.values())


@pytest.mark.parametrize("number", [3, 4, 5, 6])
@pytest.mark.parametrize("rate", [20.0, None])
def test_judge_pairs_names_slow_node_but_not_its_partners(number: int, rate: float | None) -> None:
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
        (ON_GPUS, {"n3", "n4"}, 250.0, 380.0, "ok ok warn warn"),
        (ON_GPUS, {"n3", "n4"}, 300.0, 380.0, "ok ok ok ok"),
    ],
)
def test_judge_pairs_by_scale(scale: Scale, slow: set[str], rate: float | None, usual: float, states: str) -> None:
    assert search(NODES[:4], lambda pair: rate if slow and slow <= pair else usual, scale) == states


def test_judge_pairs_without_healthy_pair_is_bad() -> None:
    found = judge_pairs(["n1", "n2"], {("n1", "n2"): None}, ON_GPUS)
    seen = [f"its all-reduce is slow: no answer with {node}" for node in ("n2", "n1")]
    assert [verdict.seen for verdict in found.values()] == seen


def test_judge_fabric_reads_lines_of_all_nodes() -> None:
    def lines(rank: int, **whole: object) -> list[str]:
        pair = {"task": "pair", "peer": 1 - rank, "gb_s": 40.0 + rank, "is_right": True}
        answers = [{"task": "compute", **H100}, pair, {"task": "all", "gb_s": 45.0, **whole}]
        return ["noise", "[]", *(json.dumps({"rank": rank, **answer}) for answer in answers)]

    found = judge_fabric({"n1": lines(0), "n2": lines(1)}, ["n1", "n2", "n3"], on_gpus=True)
    assert [by_check["matmul"].state for by_check in found.verdicts.values()] == ["ok", "ok", "bad"]
    assert (found.verdicts["n2"]["fabric"].state, found.gb_s) == ("ok", 45.0)
    wrong = judge_fabric({"n1": lines(0), "n2": lines(1, is_right=False)}, ["n1", "n2"], on_gpus=True)
    assert wrong.gb_s is None and wrong.verdicts["n1"]["fabric"].seen.endswith("pairs are healthy: a wrong sum")


def test_fabric_with_gloo_judges_two_nodes(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_json(run.plan, demo_plan(run).to_json())
    (tmp_path / "fabric").mkdir()
    argv = [sys.executable, "-m", fabric_node.__name__, str(tmp_path), str(tmp_path / "fabric"), "2"]

    def start(rank: int) -> subprocess.Popen[str]:
        env = {**os.environ, NODE_VARIABLE: "localhost", "SLURM_PROCID": str(rank)}
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)

    outputs = [node.communicate(timeout=280)[0] for node in (start(0), start(1))]
    lines = {f"n{rank}": parse_outputs(output)["localhost"][FABRIC].lines for rank, output in enumerate(outputs)}
    result = judge_fabric(lines, ["n0", "n1"], on_gpus=False)
    verdicts = [verdict for by_check in result.verdicts.values() for verdict in by_check.values()]
    assert [verdict.state for verdict in verdicts] == ["ok"] * 4, outputs
    assert result.gb_s is not None and result.gb_s > 0


def test_ranks_replace_unresponsive_rank(tmp_path: Path) -> None:
    ranks = fabric_node.Ranks(demo_plan(RunDir(tmp_path)), num_cpu_ranks=2)
    try:
        assert "did not answer in time" in ranks.ask({"do": "compute"}, 0.01)["error"]
        found = ranks.ask({"do": "compute"}, 120)
        assert found["within_gb_s"] > 0 and found["is_right"] and found["is_same"], found
    finally:
        ranks.close()


def test_benchmark_judges_simulated_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["preflight", "--nodes", "2", "3"])
    preflight.main()
    two, three = capsys.readouterr().out.splitlines()
    assert "2 nodes: " in two and "3 nodes: " in three


@pytest.mark.parametrize(("call_s", "sizes"), [(0.0, [256]), (1e9, [256, 512])])
def test_slow_device_multiplies_smaller_matrices(
    call_s: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this a device that computes at a CPU's speed gave no answer in time."""
    monkeypatch.setattr(fabric_rank, "_CALL_S", call_s)
    monkeypatch.setattr(fabric_rank, "_ON_CPU", fabric_rank.Sizes(1024, 0.001, 2**20, 1))
    seen: list[int] = []
    time_one = fabric_rank.Rank._time

    def record(rank: fabric_rank.Rank, call: Callable[..., object], *args: Any) -> float:
        seen.append(len(args[0]))
        return time_one(rank, call, *args)

    monkeypatch.setattr(fabric_rank.Rank, "_time", record)
    found = fabric_rank.Rank(fabric_rank.RankSpec(0, 1, False, "")).compute()
    assert seen == sizes and found["is_same"] and found["tflops"] > 0
