"""Memory of a policy step at the planner's sizes, as counted by torch, matches the plan."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.cases import CASES, device_overrides, fill
from tests.gpu.conftest import Note
from tests.gpu.kit import ROOT, smallest_gpu_gb, vendor
from tests.gpu.models import build_text


def measure(folder: Path, name: str) -> dict[str, float]:
    """Measure in a subprocess, which frees all memory."""
    words = fill(CASES[name].words, model=folder, rows=folder, folder=folder)
    words = [*device_overrides(vendor(), 1, smallest_gpu_gb()), *words]
    argv = [sys.executable, "-m", "tests.gpu.memory_step", json.dumps(words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("model", "name"), [("0.5b", "grpo, colocated"), ("1.5b", "grpo, colocated, 1.5b")])
def test_step_memory_matches_plan(model: str, name: str, tmp_path: Path, note: Note) -> None:
    found = measure(build_text(model, tmp_path / "model"), name)
    note(**found)
    assert 0 < found["measured_gb"] <= found["planned_gb"]
