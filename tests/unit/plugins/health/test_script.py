import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.judge import judge_nodes
from slurm_rl.plugins.health.script import build_script, parse_outputs
from slurm_rl.plugins.health.table import choose_checks
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict
from tests.unit.plugins.health.test_samples import SAMPLES

NVIDIA = ("cluster.accelerator=nvidia", "cluster.gpus_per_node=1", "rollout.colocate=true", "model.dtype=float32")


def _plan(folder: Path, *words: str, python: str = sys.executable) -> JobPlan:
    config = load_config(["+exp=demo", "+cluster=slurm_cpu", f"cluster.tmp_root={folder}", *words])
    return build_plan(config, str(folder), SubmitFacts(python, 2, "test"))


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
    assert found["start"].state == "ok", found
    assert "bad" not in {verdict.state for verdict in found.values()}
    assert not list(run_dir.glob("canary-*")), "the disk test removes its file"


@pytest.mark.parametrize("fault", ["canary", "no canary", "code", "tmp", "python"])
def test_script_on_faulty_node_detects_it(run_dir: Path, fault: str) -> None:
    plan, canary = _plan(run_dir), run_dir / "canary"
    if fault == "tmp":
        plan = _plan(run_dir, f"cluster.tmp_root={run_dir / 'missing'}")
    if fault == "python":
        plan = _plan(run_dir, python=str(run_dir / "python"))
    if fault == "code":
        (run_dir / "code").rmdir()
    if fault == "no canary":
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
