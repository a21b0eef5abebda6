"""The question that nodes are asked, run by this machine's sh; and which checks a run has."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.plugins.health.gate.judge import Verdicts, judge_nodes
from slurm_rl.plugins.health.gate.script import build_script, parse_answers
from slurm_rl.plugins.health.gate.table import choose_checks
from slurm_rl.plugins.health.gate.verdict import Wanted


def _plan(folder: Path, *words: str) -> JobPlan:
    config = load_config(["+exp=demo", "+cluster=slurm_cpu", f"cluster.tmp_root={folder}", *words])
    return build_plan(config, str(folder), SubmitFacts(sys.executable, 2, "test"))


def _ask(plan: JobPlan, canary: Path, word: str, node: str = "n1") -> Verdicts:
    checks, _ = choose_checks(plan)
    script = build_script(plan, str(canary), [check.source for check in checks if check.source])
    began = time.time()
    env = {**os.environ, "SLURMD_NODENAME": node, "CUDA_VISIBLE_DEVICES": "0,1"}
    done = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, timeout=120)
    wanted = Wanted(plan.accelerator, plan.gpus_per_node, 2, word, True, (began, time.time()))
    return judge_nodes(parse_answers(done.stdout), checks, wanted, [node])


def test_a_node_that_is_well_says_so(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    canary = tmp_path / "canary"
    canary.write_text("7e1f")
    found = _ask(_plan(tmp_path), canary, "7e1f", node="rack-1.n2")["rack-1.n2"]
    assert found["start"].state == "ok", found
    assert found["files"].state in ("ok", "warn"), found
    assert "bad" not in {verdict.state for verdict in found.values()}


@pytest.mark.parametrize("harm", ["another word", "no canary", "no code", "no tmp", "no python"])
def test_a_node_that_misses_something_is_bad(tmp_path: Path, harm: str) -> None:
    plan, canary = _plan(tmp_path), tmp_path / "canary"
    if harm == "no tmp":
        plan = _plan(tmp_path, f"cluster.tmp_root={tmp_path / 'gone'}")
    if harm == "no python":
        config = load_config(["+exp=demo", "+cluster=slurm_cpu"])
        plan = build_plan(config, str(tmp_path), SubmitFacts(str(tmp_path / "python"), 2, "test"))
    if harm != "no code":
        (tmp_path / "code").mkdir()
    if harm != "no canary":
        canary.write_text("7e1f")
    found = _ask(plan, canary, "other" if harm == "another word" else "7e1f")["n1"]
    assert [name for name, verdict in found.items() if verdict.state == "bad"], (harm, found)


def test_a_fake_tool_on_path_is_asked_for_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "canary").write_text("7e1f")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {Path(__file__).parents[4]}/samples/nvidia-smi-missing-gpu.txt\nexit 15\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    nvidia = ["cluster.accelerator=nvidia", "cluster.gpus_per_node=1", "rollout.colocate=true", "model.dtype=float32"]
    found = _ask(_plan(tmp_path, *nvidia), tmp_path / "canary", "7e1f")["n1"]
    assert found["gpus"].seen.startswith("nvidia-smi: Unable to determine the device handle for GPU0000:01:00.0")
    assert (found["gpus"].state, found["ecc"].state) == ("bad", "unknown")


def test_levels_and_the_budget_choose_the_checks(tmp_path: Path) -> None:
    nvidia = ["cluster.accelerator=nvidia", "cluster.gpus_per_node=1", "rollout.colocate=true", "model.dtype=float32"]

    def names(*words: str) -> tuple[list[str], list[str]]:
        asked, left_out = choose_checks(_plan(tmp_path, *words))
        return [check.name for check in asked], [check.name for check in left_out]

    assert names() == (["files", "start", "ports", "disks", "pairs"], [])
    assert names("preflight.level=off") == ([], [])
    quick, _ = names(*nvidia)
    assert {"gpus", "recovery", "ecc", "clocks", "xid", "links"} <= set(quick)
    assert "dcgm" not in quick
    assert names(*nvidia, "preflight.level=full")[0] == [*quick, "dcgm", "matmul", "fabric"]
    asked, left_out = names(*nvidia, "preflight.budget_s=1")
    assert "files" in asked
    assert {"gpus", "recovery", "ecc", "clocks"} <= set(left_out), "they are read of one tool"
