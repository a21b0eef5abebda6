"""Memory of a policy step, layouts on two GPUs, and throughput, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.cases import CASES, device_overrides, fill
from tests.gpu.conftest import Note
from tests.gpu.kit import ROOT, need, smallest_gpu_gb, vendor
from tests.gpu.layout_rank import CHARACTERS, LAYOUTS
from tests.gpu.memory_step import measure
from tests.gpu.models import build_text


@pytest.mark.parametrize(("model", "name"), [("0.5b", "grpo, colocated"), ("1.5b", "grpo, colocated, 1.5b")])
def test_step_memory_matches_plan(model: str, name: str, tmp_path: Path, note: Note) -> None:
    folder = build_text(model, tmp_path / "model")
    words = fill(CASES[name].words, model=folder, rows=folder, folder=folder)
    found = measure([*device_overrides(vendor(), 1, smallest_gpu_gb()), *words])
    note(**found)
    assert 0 < found["measured_gb"] <= found["planned_gb"]


def run_layout(num_ranks: int, backend: str, folder: Path, out: Path) -> list[dict[str, float]]:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    argv += ["-m", "tests.gpu.layout_rank", str(folder), backend, str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found: list[dict[str, float]] = json.loads(out.read_text())
    return found


@pytest.mark.parametrize("backend", LAYOUTS)
def test_two_gpus_equal_one(backend: str, tmp_path: Path, num_gpus: int, note: Note) -> None:
    from tests.tiny_models import TinyModel, build_tiny_model

    need(2, num_gpus)
    folder = tmp_path / "model"
    build_tiny_model(TinyModel(characters=CHARACTERS, hidden_size=256, num_heads=4), 0, folder)
    one = run_layout(1, "fsdp2", folder, tmp_path / "one.json")
    two = run_layout(2, backend, folder, tmp_path / "two.json")
    distance = max(abs(a[key] / b[key] - 1) for a, b in zip(one, two, strict=True) for key in ("loss", "grad_norm"))
    note(relative_difference=distance)
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_trainer_throughput_prints_row() -> None:
    words = [sys.executable, "-m", "benchmarks.trainer_throughput", "--shape", "0.5b", "1.5b", "--tokens", "16384"]
    done = subprocess.run([*words, "--gradient-checkpointing"], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    print("\n" + done.stdout)
    rows = [line.split("|") for line in done.stdout.splitlines()[2:]]
    assert [row[1].strip() for row in rows] == ["0.5b", "1.5b"]
    assert all(float(row[3]) > 0 and row[2].strip() != "CPU" for row in rows)
