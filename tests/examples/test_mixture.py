"""Two sources in one run: by its README, and killed and resumed. Real Ray, vLLM and torch on CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.jsonl import read_rows
from slurm_rl.run_dir import RunDir
from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import HERE, ROOT, SMALL, run_readme
from tests.whole_run import exact_rows, kill_trainer

SIZES = (*SMALL, "trainer.num_steps=4", "eval.every=4", "checkpoint.every=2", "data.sources.games.num_eval=10")


def test_a_mixture(tmp_path: Path) -> None:
    run_readme("mixture", tmp_path, {"mixture_tiny": SIZES})
    rows = exact_rows(tmp_path / "runs/mixture")
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 4
    for row in steps:
        # Prompts of both, engine and policy agree on all that was sampled, and both move the policy.
        assert row["source/sums/prompts"] + row["source/games/prompts"] == 64 and row["source/sums/prompts"] > 0
        assert row["mismatch/max"] < 1e-4 and row["policy/grad_norm"] > 0
        assert 0 < row["episode/masked"] < 0.5
    [*_, evaluated] = [row for row in rows if row["stage"] == "eval"]
    share = (5 * evaluated["source/sums/sampled"] + 10 * evaluated["source/games/sampled"]) / 15
    assert abs(evaluated["accuracy/sampled"] - share) < 1e-9
    samples = read_rows(RunDir(tmp_path / "runs/mixture").samples)
    assert {row["row"].split("/")[0] for row in samples} == {"sums", "games"}


@pytest.mark.slow
def test_a_killed_mixture_has_the_same_digits(tmp_path: Path) -> None:
    run_readme("mixture", tmp_path, {"mixture_tiny": SIZES})
    rows = exact_rows(tmp_path / "runs/mixture")
    killed = tmp_path / "killed"
    words = [f"run_dir={killed}", "--config-dir", "examples/mixture", "+exp=mixture_tiny", *HERE, *SIZES]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    slurm_rl = [sys.executable, "-m", "slurm_rl"]
    started = subprocess.Popen([*slurm_rl, *words], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, text=True)
    kill_trainer(RunDir(killed), started, step=2)
    assert started.wait(timeout=300) != 0
    resumed = subprocess.run([*slurm_rl, "resume", str(killed)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert exact_rows(killed) == rows
