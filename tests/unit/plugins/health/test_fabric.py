"""The judge of the fabric measurement, and its clients with real torch and gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.node.gpu_peaks import find_peak
from slurm_rl.plan.job import NODE_VARIABLE
from slurm_rl.plugins.health import fabric_node
from slurm_rl.plugins.health.fabric import (
    ON_CPUS,
    ON_GPUS,
    FabricResult,
    best_answer,
    choose_tested,
    judge_compute,
    merge_ranks,
)
from slurm_rl.plugins.health.fabric_leader import lead_fabric
from slurm_rl.plugins.health.leader import TOKEN_VARIABLE, Leader
from slurm_rl.plugins.health.verdict import Verdict
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests.storage.writers import demo_plan

H100 = {"gpu": "NVIDIA H100 80GB HBM3", "num_ranks": 8, "tflops": 650.0, "within_gb_s": 460.0, "is_same": True}
NODES = ["n1", "n2", "n3", "n4"]


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


def test_judge_compute_compares_with_the_data_sheet() -> None:
    slow = {**H100, "within_gb_s": 20.0, "tflops": 400.0}
    found = judge_compute({"n1": slow, "n2": slow, "n3": slow}, ON_GPUS)
    assert {verdict.state for verdict in found.values()} == {"warn"}
    assert found["n1"].seen == (
        "multiplies at 400 of at least 494 TFLOP/s; reduces within the node at 20 of at least 112 GB/s"
    )
    assert judge_compute({"n1": None, "n2": H100}, ON_GPUS)["n1"].seen == "it did not answer in time"


def test_judge_compute_tolerates_busy_cpus() -> None:
    answers = {node: {"tflops": rate} for node, rate in zip(NODES, (0.03, 0.02, 0.011, 0.005), strict=True)}
    assert [one.state for one in judge_compute(answers, ON_CPUS).values()] == ["ok", "ok", "ok", "bad"]


@given(st.dictionaries(st.sampled_from(sorted(H100)), st.one_of(st.none(), st.booleans(), st.text(), st.floats())))
def test_judge_compute_survives_garbage(garbage: dict[str, Any]) -> None:
    found = judge_compute({"n1": garbage, "n2": H100, "n3": H100}, ON_GPUS)
    assert found["n2"].state == found["n3"].state == "ok"
    assert best_answer(garbage, H100) is not None


@pytest.mark.parametrize(("passed", "tested"), [([], NODES), (NODES, []), (["n1", "n3", "n4"], ["n1", "n2", "n3"])])
def test_choose_tested_keeps_passed_nodes_as_partners(passed: list[str], tested: list[str]) -> None:
    assert choose_tested(NODES, passed) == tested


def test_fabric_result_lists_nodes_that_passed() -> None:
    ok, warn = Verdict("ok"), Verdict("warn")
    result = FabricResult({"n1": {"matmul": ok, "fabric": ok}, "n2": {"matmul": ok, "fabric": warn}, "n3": {}})
    assert result.passed == ["n1"]


def test_merge_ranks_returns_the_first_error() -> None:
    assert merge_ranks([{"tflops": 2.0}, {"error": "no GPU"}]) == {"error": "rank 1: no GPU"}
    assert merge_ranks([{"is_same": True, "gpu": "H100"}, {"is_same": False, "gpu": "H100"}])["is_same"] is False


@pytest.mark.parametrize(
    ("name", "tflops"), [("AMD Instinct MI300X", 1307), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA H200 NVL", 756)]
)
def test_find_peak_knows_common_gpus(name: str, tflops: float) -> None:
    peak = find_peak(name)
    assert peak is not None and peak.tflops == tflops


def test_fabric_with_gloo_judges_two_nodes(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    plan = demo_plan(run)
    write_json(run.plan, plan.to_json())
    leader = Leader()
    argv = [sys.executable, "-m", fabric_node.__name__, str(tmp_path), "127.0.0.1", str(leader.port)]
    env = {**os.environ, TOKEN_VARIABLE: leader.token}
    nodes = [subprocess.Popen(argv, env={**env, NODE_VARIABLE: name}) for name in NODES[:2]]
    try:
        leader.accept(2, lambda: nodes[0].poll() is not None)
        result = lead_fabric(leader, NODES[:2], plan)
    finally:
        leader.close()
        for node in nodes:
            node.wait(120)
    verdicts = [verdict for by_check in result.verdicts.values() for verdict in by_check.values()]
    assert sorted(result.verdicts) == NODES[:2] and len(verdicts) == 4
    assert not any(verdict.state == "unknown" or "Error" in verdict.seen for verdict in verdicts), verdicts
    assert result.gb_s is None or result.gb_s > 0


def test_ranks_replace_a_rank_that_does_not_answer(tmp_path: Path) -> None:
    plan = demo_plan(RunDir(tmp_path))
    ranks = fabric_node.Ranks(plan, dict(os.environ), num_cpu_ranks=2)
    try:
        assert "did not answer in time" in ranks.ask({"do": "compute", "within_s": 0.01})["error"]
        found = ranks.ask({"do": "compute", "within_s": 120})
        assert found["within_gb_s"] > 0 and found["is_right"] and found["is_same"], found
    finally:
        ranks.close()
