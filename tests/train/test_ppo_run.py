"""PPO through the whole pipeline: killed, it resumes to the same numbers in every digit. Real Ray, vLLM and torch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slurm_rl.run_dir import RunDir, read_jsonl
from tests.whole_run import exact_rows, start_run

pytestmark = pytest.mark.slow

WORDS = (
    "+algorithm=ppo",
    "algorithm.group_size=2",
    "algorithm.kl.coefficient=0.01",
    "algorithm.kl.target=0.5",
    "algorithm.kl.horizon=100",
    "critic.optim.lr=1e-3",
    "critic.warmup_steps=1",
    "trainer.num_minibatches=2",
    "job.max_failures=1",
)


def test_a_killed_run_goes_on_with_policy_critic_and_kl_coefficient(tmp_path: Path) -> None:
    whole, harmed = tmp_path / "whole", tmp_path / "harmed"
    process = start_run(whole, *WORDS)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    rows = [row for row in exact_rows(whole) if row["stage"] == "grpo"]
    assert len(rows) == 6
    assert "policy/loss" not in rows[0] and all("policy/loss" in row for row in rows[1:])
    assert all(row["critic/loss"] > 0 for row in rows)
    assert len({row["kl/coefficient"] for row in rows}) > 1

    process = start_run(harmed, *WORDS)
    kill_after_a_step(RunDir(harmed), process)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert exact_rows(harmed) == exact_rows(whole)


def kill_after_a_step(run: RunDir, process: subprocess.Popen[str]) -> None:
    """kill -9 of the trainer once the first checkpoint with a trained critic is there."""
    deadline = time.monotonic() + 400
    while not any(row["kind"] == "checkpoint/saved" and row["step"] >= 42 for row in read_jsonl(run.events)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and f"train.grpo.main\0--run-dir\0{run.path}\0".encode() in read_cmdline(entry):
            os.kill(int(entry.name), signal.SIGKILL)
            return
    raise AssertionError("no trainer to kill")


def read_cmdline(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
