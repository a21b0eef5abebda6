import os
import subprocess
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.preflight import CHECKS
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.judge import apply_policy, judge_nodes
from slurm_rl.plugins.health.script import SOURCES, Output, build_script, parse_outputs
from slurm_rl.plugins.health.table import TABLE, choose_checks
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict
from tests.plans import plan_of
from tests.unit.plugins.health.test_samples import SAMPLES

NVIDIA = ("cluster.accelerator=nvidia", "cluster.gpus_per_node=1", "rollout.colocate=true", "model.dtype=float32")


def _plan(folder: Path, *words: str, python: str = sys.executable) -> JobPlan:
    return plan_of("+cluster=slurm_cpu", f"cluster.tmp_root={folder}", *words, run_dir=folder, python=python)


def _check(plan: JobPlan, canary: Path, word: str = "7e1f") -> dict[str, Verdict]:
    checks = choose_checks(plan, plan.preflight.level)
    script = build_script(plan, str(canary), [check.source for check in checks if check.source])
    began = time.time()
    env = {**os.environ, "SLURMD_NODENAME": "rack-1.n2", "CUDA_VISIBLE_DEVICES": "0,1"}
    done = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, timeout=120)
    spec = NodeSpec(plan.accelerator, plan.gpus_per_node, 2, word, True, (began, time.time()))
    return judge_nodes(parse_outputs(done.stdout), checks, spec, ["rack-1.n2"])["rack-1.n2"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "canary").write_text("7e1f")
    return tmp_path


def test_script_on_healthy_node_finds_nothing_bad(run_dir: Path) -> None:
    found = _check(_plan(run_dir), run_dir / "canary")
    assert found["start"].state == "ok" and "bad" not in {verdict.state for verdict in found.values()}, found
    assert not list(run_dir.glob("canary-*")), "the disk test removes its file"


@pytest.mark.parametrize("fault", ["canary", "no canary", "code", "tmp", "python"])
def test_script_on_faulty_node_detects_it(run_dir: Path, fault: str) -> None:
    plan, canary = _plan(run_dir), run_dir / "canary"
    match fault:
        case "tmp":
            plan = _plan(run_dir, f"cluster.tmp_root={run_dir / 'missing'}")
        case "python":
            plan = _plan(run_dir, python=str(run_dir / "python"))
        case "code":
            (run_dir / "code").rmdir()
        case "no canary":
            canary.unlink()
    found = _check(plan, canary, "other" if fault == "canary" else "7e1f")
    assert "bad" in {verdict.state for verdict in found.values()}, found


def test_script_uses_nvidia_smi_on_path(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = run_dir / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {SAMPLES}/nvidia-smi-missing-gpu.txt\nexit 15\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{run_dir}:{os.environ['PATH']}")
    found = _check(_plan(run_dir, *NVIDIA), run_dir / "canary")
    assert found["gpus"].seen.startswith("nvidia-smi: Unable to determine the device handle for GPU0000:01:00.0")
    assert (found["gpus"].state, found["ecc"].state) == ("bad", "unknown")


def test_choose_checks_follows_level(tmp_path: Path) -> None:
    def names(level: str, *words: str) -> list[str]:
        plan = _plan(tmp_path, *words)
        return [check.name for check in choose_checks(plan, level)]

    assert names("quick") == ["files", "start", "disks"]
    assert names("off") == []
    assert names("quick", *NVIDIA) == ["files", "start", "gpus", "ecc", "clocks", "disks"]
    assert names("full", *NVIDIA) == [*names("quick", *NVIDIA), "matmul", "fabric"]
    assert {"gpus", "versions", "vllm", "matmul"} <= set(names("doctor", *NVIDIA))


SPEC = NodeSpec("nvidia", 1, 3, "w", True, (0.0, 1.0))


def test_table_names_sources_and_policies() -> None:
    assert {check.source for check in TABLE if check.parse} == set(SOURCES)
    assert {check.name for check in TABLE if check.level != "doctor"} == set(CHECKS)


@pytest.mark.parametrize(
    ("bad", "number", "policy", "unfit_common_refused_warned"),
    [
        (["n2"], 3, {}, ({"n2": {"gpus": "1 GPU, not 8"}}, {}, {}, {})),
        (["n1"], 1, {}, ({"n1": {"gpus": "1 GPU, not 8"}}, {}, {}, {})),
        (["n1", "n2"], 4, {}, ({}, {"gpus": "2 of 4 nodes, n1: 1 GPU, not 8"}, {}, {})),
        (["n2"], 2, {"gpus": "warn"}, ({}, {}, {}, {"gpus: 1 GPU, not 8": "n2"})),
        (["n2"], 2, {"gpus": "refuse"}, ({}, {}, {"gpus": "n2: 1 GPU, not 8"}, {})),
    ],
)
def test_apply_policy_decides_by_rule_and_share(
    bad: list[str], number: int, policy: dict[str, str], unfit_common_refused_warned: tuple[dict[str, Any], ...]
) -> None:
    nodes = [f"n{place}" for place in range(1, number + 1)]
    verdicts = {node: {"gpus": Verdict("bad", "1 GPU, not 8") if node in bad else Verdict("ok")} for node in nodes}
    assert astuple(apply_policy(verdicts, policy))[:4] == unfit_common_refused_warned


def test_apply_policy_groups_unknown_verdicts() -> None:
    verdicts = {f"n{number}": {"ecc": Verdict("unknown", "no ECC")} for number in range(1, 12)}
    found = apply_policy(verdicts, {})
    assert (found.unfit, found.common) == ({}, {})
    assert found.unknown == {"ecc: no ECC": "n1, n2, n3, n4, n5, n6, n7, n8 and 3 more"}


def test_judge_nodes_marks_hanging_sources_bad() -> None:
    output = "n1|files|canary w\nn2|files|canary w\nn1|files|clock 0.5\nn2|nvidia-smi|mask 0\nn1|files|=rc 0\nnoise\n"
    outputs = parse_outputs(output)
    assert outputs["n1"]["files"] == Output(0, ["canary w", "clock 0.5"])
    checks = [check for check in TABLE if check.name in ("files", "gpus") and check.vendor != "amd"]
    found = judge_nodes(outputs, checks, SPEC, ["n1", "n2", "n3"])
    assert list(found) == ["n1", "n2"]
    assert [found["n1"][name].state for name in ("files", "gpus")] == ["bad", "unknown"]
    late = ["files did not answer in time", "nvidia-smi did not answer in time"]
    assert [found["n2"][name].seen for name in ("files", "gpus")] == late
