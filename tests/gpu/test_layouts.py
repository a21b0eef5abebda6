"""FSDP2 and ZeRO-3 on two GPUs take the same steps as one GPU; tests/train checks this with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import Note
from tests.gpu.kit import ROOT, need
from tests.gpu.layout_rank import CHARACTERS, LAYOUTS


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
