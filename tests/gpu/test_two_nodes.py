"""Two nodes of one allocation: `salloc -N2 --gpus-per-node=... make gpu`, from a shared folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.cases import DEMO, PRESETS, fill
from tests.gpu.kit import ROOT, vendor
from tests.gpu.models import build_text
from tests.whole_run import exact_rows

NUM_NODES = int(os.environ.get("SLURM_JOB_NUM_NODES", 0))
pytestmark = pytest.mark.skipif(NUM_NODES < 2, reason="needs a Slurm allocation of two nodes around it")


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Path:
    """pytest's tmp_path is private to each node; the checkout is shared."""
    folder = ROOT / "runs" / f"gpu-{os.environ['SLURM_JOB_ID']}-{request.node.name[:40]}"
    folder.mkdir(parents=True)
    return folder


def test_two_nodes_pass_preflight(shared: Path) -> None:
    words = ["doctor", f"+cluster={PRESETS[vendor()]}", f"cluster.run_root={shared}"]
    done = subprocess.run([sys.executable, "-m", "slurm_rl", *words], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_grpo_over_two_nodes(shared: Path) -> None:
    model, run = build_text("0.5b", shared / "model"), shared / "run"
    words = fill(DEMO, model=model, rows=shared, folder=shared)
    words += [f"+cluster={PRESETS[vendor()]}", f"run_dir={run}", "ray.object_store_gb=4", "logging.wandb.mode=disabled"]
    argv = [sys.executable, "-m", "slurm_rl", "run-in-job", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    steps = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert len(steps) == 3 and all(row["policy/grad_norm"] > 0 for row in steps)
