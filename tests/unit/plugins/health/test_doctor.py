import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.plugins.health import probes
from slurm_rl.plugins.health.report import render
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict
from tests.plans import plan_of


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("doctor")
    # SFT does not sample: importing vLLM takes longest.
    argv = [sys.executable, "-m", "slurm_rl", "doctor", "--json", "+exp=sft_tiny"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((folder / "runs").iterdir()), "it leaves no files"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_doctor_on_cpu_runs_all_checks(report: dict[str, Any]) -> None:
    [found] = report["nodes"].values()
    assert report["healthy"] is True
    assert set(found) == {"files", "start", "disks", "versions", "masks", "tmp_root", "vllm", "matmul"}
    assert "TFLOP/s" in found["matmul"]["seen"]
    assert found["vllm"]["state"] == "unknown"


def test_versions_names_missing_packages() -> None:
    found = probes.check_versions(plan_of("+cluster=nvidia_h100"))
    assert found.state == "bad" and "vllm missing" in found.seen and "nvidia driver missing" in found.seen


def test_masks_compares_grant_and_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("+cluster=nvidia_h100", "cluster.gpus_per_node=2")
    for name in ("SLURM_GPUS_ON_NODE", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    found = probes.check_masks(plan)
    assert found.state == "ok" and found.seen.endswith("a run gets 4,5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    found = probes.check_masks(plan)
    assert found.state == "bad" and "scontrol show node" in found.seen


@pytest.mark.parametrize(("name", "state"), [("", "ok"), ("missing", "bad"), ("x" * 110, "bad")])
def test_tmp_root_must_support_sockets(tmp_path: Path, name: str, state: str) -> None:
    root = tmp_path / name if name else Path("/tmp")
    if len(name) > 10:
        root.mkdir()
    assert probes.check_tmp_root(replace(plan_of(), tmp_root=str(root))).state == state


@pytest.mark.parametrize(
    ("text", "rc", "verdict"),
    [
        ('INFO imports\n{"state": "ok", "seen": "1.2", "facts": {}}\nbye', 0, Verdict("ok", "1.2")),
        ("Traceback\nno module", 1, Verdict("bad", "ended with exit status 1: no module")),
        ("", 139, Verdict("bad", "ended with exit status 139: no output")),
        ("", 124, Verdict("bad", "no answer in time: no output")),
    ],
)
def test_parse_of_probe_reports_failed_process(text: str, rc: int, verdict: Verdict) -> None:
    assert probes.parse(text, rc, NodeSpec("cpu", 0, 1, "w", False, (0.0, 1.0))) == verdict


def test_render_groups_nodes_and_advises() -> None:
    bad, ok = Verdict("bad", "a memory row could not be remapped"), Verdict("ok", "no uncorrectable error")
    text = render({"n1": {"ecc": ok}, "n2": {"ecc": bad}, "n3": {"ecc": ok}}, width=100)
    lines = text.splitlines()
    assert lines[1].split() == ["WRONG", "ecc", "n2", *bad.seen.split()]
    assert "do: drain the node" in text and "ok" in lines[-1] and "n1 n3" in lines[-1]
    assert all(len(line) <= 40 for line in render({"n1": {"ecc": bad}}, width=40).splitlines())
