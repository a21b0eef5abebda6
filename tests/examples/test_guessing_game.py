"""The game of several turns: by its README, and killed and resumed. Real Ray, vLLM and torch on CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slurm_rl.run_dir import RunDir
from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import HERE, ROOT, SMALL, run_readme
from tests.whole_run import exact_rows, kill_trainer

SIZES = (*SMALL, "trainer.num_steps=4", "data.num_eval=10", "eval.every=4", "checkpoint.every=2")


def test_a_guessing_game(tmp_path: Path) -> None:
    printed = run_readme("guessing_game", tmp_path, {"guessing_game_tiny": SIZES})
    assert "step 4, reward" in printed and "turn 1" in printed and "it said" in printed
    rows = exact_rows(tmp_path / "runs/guessing_game")
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 4
    assert all(1 < row["episode/turns_mean"] <= 4 and 0 < row["episode/masked"] < 0.5 for row in steps)
    # Over all turns the policy says of each sampled token what the engine said.
    assert all(row["mismatch/max"] < 1e-4 for row in steps) and all(row["policy/grad_norm"] > 0 for row in steps)
    killed = tmp_path / "killed"
    words = [f"run_dir={killed}", "--config-dir", "examples/guessing_game", "+exp=guessing_game_tiny", *HERE, *SIZES]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    slurm_rl = [sys.executable, "-m", "slurm_rl"]
    started = subprocess.Popen([*slurm_rl, *words], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    kill_trainer(RunDir(killed), started, step=2)
    assert started.wait(timeout=300) != 0
    resumed = subprocess.run([*slurm_rl, "resume", str(killed)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert exact_rows(killed) == rows
