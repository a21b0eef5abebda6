"""Runs on fake GPUs compute what the same runs compute on a CPU, and tests/gpu passes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fake_gpu.test_device import PYTHON, pytestmark  # noqa: F401  (the same environment)
from tests.lock import ROOT
from tests.whole_run import exact_rows

SFT = ("+exp=sft_tiny", "supervised.max_steps=4", "supervised.batch_size=32", "data.num_eval=40", "model.dtype=float32")

GRPO = ("+exp=demo", "warmup.num_steps=2", "warmup.batch_size=16", "trainer.num_steps=2", "trainer.prompts_per_step=4")
GRPO += ("algorithm.group_size=4", "data.num_eval=4", "rollout.max_num_seqs=16", "rollout.enforce_eager=true")
GRPO += ("reward.verifiers.arithmetic=null", f"reward.function={ROOT / 'tests/gpu/reward.py'}:score")


def run(python: Path | str, machine: Sequence[str], folder: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metrics of a run; on CPU without a machine."""
    device = [str(PYTHON), "-m", "tests.fake_gpu", "run", *machine] if machine else []
    argv = [*device, str(python), "-m", "slurm_rl", *words, f"run_dir={folder}", "logging.wandb.mode=disabled"]
    environ = {**os.environ, "XDG_STATE_HOME": str(folder.parent / "state"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    if machine:
        assert f"{machine[1]} x NVIDIA H100 80GB HBM3" in done.stdout + done.stderr, done.stderr
    return exact_rows(folder)


@pytest.mark.timeout(2700)
def test_sft_on_two_fake_gpus_equals_cpu(tmp_path: Path) -> None:
    on_cpu = run(sys.executable, (), tmp_path / "cpu", SFT)
    on_gpus = run(PYTHON, ("--gpus", "2"), tmp_path / "gpus", SFT)
    assert len(on_cpu) == len(on_gpus) == 6
    for one, other in zip(on_cpu, on_gpus, strict=True):
        assert other.pop("stage") == one.pop("stage")
        assert other == pytest.approx(one, rel=1e-5)


@pytest.mark.timeout(2700)
def test_grpo_on_two_fake_gpus_agrees_with_engines(tmp_path: Path) -> None:
    """Two policy workers and two engines share the GPUs: sleep, wake, weights by handle, in bfloat16."""
    rows = run(PYTHON, ("--gpus", "2", "--mem-gb", "12"), tmp_path / "gpus", GRPO)
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2
    for step in steps:
        assert step["policy/grad_norm"] > 0 and step["mismatch/mean"] < 5e-3 and step["sync/probe_difference"] < 2e-2


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("file", ["test_engine.py"])
def test_gpu_tests_pass_on_fake_gpus(file: str, tmp_path: Path) -> None:
    words = ["-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'gpu'}", f"tests/gpu/{file}"]
    argv = [PYTHON, "-m", "tests.fake_gpu", "run", "--gpus", "2", "--mem-gb", "16", PYTHON, *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:] + done.stderr[-3000:]
