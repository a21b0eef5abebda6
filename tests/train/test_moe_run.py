"""A MoE in the whole pipeline learns, is killed, and resumes to identical metrics."""

from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir
from tests.tiny_models import SMALL
from tests.tiny_moe import build_tiny_moe
from tests.whole_run import OVERRIDES, exact_rows, finish, kill_trainer, start_run

pytestmark = pytest.mark.slow

WORDS = (
    "warmup.num_steps=100",
    "warmup.batch_size=64",
    "trainer.num_steps=24",
    "trainer.prompts_per_step=32",
    "algorithm.group_size=8",
    "job.max_failures=1",
)


def test_grpo_of_experts_learns_and_resumes_after_kill(tmp_path: Path) -> None:
    model = build_tiny_moe(SMALL, tmp_path / "model")
    base = [word for word in OVERRIDES if not word.startswith("model.")]
    words = ("model=hf", f"model.path={model}", *WORDS)
    whole, harmed = tmp_path / "whole", tmp_path / "harmed"
    finish(start_run(whole, *words, base=base))
    rows = [row for row in exact_rows(whole) if row["stage"] == "grpo"]
    assert max(row["sync/probe_difference"] for row in rows) < 2e-5, "stale experts differ by 1e-2"
    rewards = [row["reward/mean"] for row in rows]
    assert sum(rewards[-8:]) > sum(rewards[:8]) + 0.2, rewards

    process = start_run(harmed, *words, base=base)
    kill_trainer(RunDir(harmed), process, step=104)
    finish(process)
    assert exact_rows(harmed) == exact_rows(whole)
