"""The test of the fabric: who stands out, and the nodes' program with real torch and gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.plan.job import NODE_VARIABLE
from slurm_rl.plugins.health.gate.fabric import (
    ON_CPUS,
    ON_GPUS,
    FabricOutcome,
    better,
    choose_tested,
    judge_compute,
    merge_ranks,
)
from slurm_rl.plugins.health.gate.fabric_node import WORD
from slurm_rl.plugins.health.gate.pairs import Pair, first_round, judge_pairs, second_round
from slurm_rl.plugins.health.gate.verdict import Verdict
from slurm_rl.plugins.health.measure_fabric import lead
from slurm_rl.plugins.health.measure_pairs import Leader
from slurm_rl.run_dir import RunDir, write_json
from tests.storage.writers import demo_plan

H100 = {"gpu": "NVIDIA H100 80GB HBM3", "num_ranks": 8, "tflops": 650.0, "within_gb_s": 460.0, "is_same": True}
NODES = ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("changed", "state", "seen"),
    [
        ({}, "ok", "multiplies at 650 TFLOP/s; reduces within the node at 460 GB/s"),
        ({"tflops": 300.0}, "bad", "multiplies at 300 TFLOP/s, others 650"),
        ({"tflops": 450.0}, "warn", "multiplies at 450 TFLOP/s, others 650"),
        ({"within_gb_s": 100.0}, "bad", "reduces within the node at 100 GB/s, others 460"),
        ({"is_same": False}, "bad", "the same product of matrices is another, or not finite, the second time"),
        ({"is_right": False}, "bad", "an all-reduce within the node is not the sum"),
        ({"error": "RuntimeError: CUDA error: unspecified"}, "bad", "RuntimeError: CUDA error: unspecified"),
    ],
)
def test_a_node_is_held_against_its_peers(changed: Mapping[str, Any], state: str, seen: str) -> None:
    found = judge_compute({"n1": H100, "n2": H100, "n3": {**H100, **changed}, "n4": H100}, ON_GPUS)
    assert (found["n3"].state, found["n3"].seen) == (state, seen)
    assert {found[node].state for node in ("n1", "n2", "n4")} == {"ok"}


def test_links_that_are_slow_on_all_nodes_are_told_by_the_table_and_silence_is_bad() -> None:
    """An H100 of eight sends 450 GB/s to the others; below a quarter something is in the way."""
    slow = {**H100, "within_gb_s": 20.0}
    found = judge_compute({"n1": slow, "n2": slow, "n3": slow}, ON_GPUS)
    assert {verdict.state for verdict in found.values()} == {"warn"}
    assert found["n1"].seen == "reduces within the node at 20 of at least 112 GB/s"
    assert judge_compute({"n1": None, "n2": H100}, ON_GPUS)["n1"].seen == "it did not answer in time"


@given(st.dictionaries(st.sampled_from(sorted(H100)), st.one_of(st.none(), st.booleans(), st.text(), st.floats())))
def test_an_answer_of_another_form_makes_no_judge_fall(garbage: dict[str, Any]) -> None:
    found = judge_compute({"n1": garbage, "n2": H100, "n3": H100}, ON_GPUS)
    assert found["n2"].state == found["n3"].state == "ok"
    assert better(garbage, H100) is not None


def rounds(rates: Mapping[frozenset[str], float | None]) -> dict[str, str]:
    def rate(pair: Pair) -> float | None:
        return rates.get(frozenset(pair), 380.0)

    first = {pair: rate(pair) for pairs in first_round(NODES) for pair in pairs}
    second = {pair: rate(pair) for pairs in second_round(first, ON_GPUS) for pair in pairs}
    found = judge_pairs(NODES, first, second, scale=ON_GPUS)
    return {node: verdict.state for node, verdict in found.items()}


@pytest.mark.parametrize("slow", [150.0, None])
def test_a_node_whose_pairs_are_slow_or_hang_is_named_and_its_partner_is_not(slow: float | None) -> None:
    bad = {frozenset((node, "n3")): slow for node in NODES if node != "n3"}
    assert rounds(bad) == {"n1": "ok", "n2": "ok", "n3": "bad", "n4": "ok"}
    assert rounds({frozenset(("n3", "n4")): slow}) == {"n1": "ok", "n2": "ok", "n3": "warn", "n4": "warn"}
    assert rounds({frozenset(("n3", "n4")): 250.0}) == {"n1": "ok", "n2": "ok", "n3": "warn", "n4": "warn"}
    assert set(rounds({frozenset(("n3", "n4")): 300.0}).values()) == {"ok"}


def test_who_passed_today_is_only_a_partner() -> None:
    assert choose_tested(NODES, []) == NODES
    assert choose_tested(NODES, NODES) == []
    assert choose_tested(NODES, ["n1", "n3", "n4"]) == ["n1", "n2", "n3"]
    ok, warn = Verdict("ok"), Verdict("warn")
    tested = FabricOutcome({"n1": {"matmul": ok, "fabric": ok}, "n2": {"matmul": ok, "fabric": warn}, "n3": {}})
    assert tested.passed == ["n1"]


def test_a_rank_that_fails_speaks_for_its_node() -> None:
    assert merge_ranks([{"tflops": 2.0}, {"error": "no GPU"}]) == {"error": "rank 1: no GPU"}
    assert merge_ranks([{"is_same": True, "gpu": "H100"}, {"is_same": False, "gpu": "H100"}])["is_same"] is False


@contextmanager
def started(leader: Leader, folder: Path, names: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Each as srun would start it, in its container."""
    argv = [
        sys.executable,
        "-m",
        "slurm_rl.plugins.health.gate.fabric_node",
        str(folder),
        "127.0.0.1",
        str(leader.port),
    ]
    with ExitStack() as stack:
        nodes = []
        for name in names:
            env = {**os.environ, WORD: leader.word, NODE_VARIABLE: name}
            nodes.append(stack.enter_context(subprocess.Popen(argv, env=env, text=True)))
        try:
            yield nodes[0]
        finally:
            leader.close()
            for node in nodes:
                node.wait(120)


def test_two_nodes_multiply_and_reduce_and_end_with_their_leader(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    plan = demo_plan(run)
    write_json(run.plan, plan.to_json())
    leader = Leader("secret")
    with started(leader, tmp_path, NODES[:2]) as step:
        found = lead(leader, NODES[:2], step, plan)
    # How fast each is, is this machine's affair; that the sum is right over all of them is not.
    verdicts = [verdict for of in found.verdicts.values() for verdict in of.values()]
    assert sorted(found.verdicts) == NODES[:2] and len(verdicts) == 4
    assert "unknown" not in {verdict.state for verdict in verdicts}
    assert not any("Error" in verdict.seen for verdict in verdicts), verdicts
    assert found.gb_s is None or found.gb_s > 0


def test_a_cpu_is_slow_only_where_others_are_three_times_as_fast() -> None:
    said = {node: {"tflops": rate} for node, rate in zip(NODES, (0.03, 0.02, 0.011, 0.005), strict=True)}
    assert [one.state for one in judge_compute(said, ON_CPUS).values()] == ["ok", "ok", "ok", "bad"]
