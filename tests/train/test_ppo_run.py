"""Killed PPO runs resume to identical metrics, with real Ray, vLLM and torch."""

from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir
from tests.train.conftest import build_reward_model
from tests.whole_run import exact_rows, finish, kill_trainer, start_run

pytestmark = pytest.mark.slow

WORDS = (
    "+algorithm=ppo",
    "algorithm.group_size=2",
    "algorithm.kl.coef=0.01",
    "algorithm.kl.target=0.5",
    "algorithm.kl.horizon=100",
    "critic.optim.lr=1e-3",
    "critic.warmup_steps=1",
    "trainer.num_minibatches=2",
    "job.max_failures=1",
)


def test_killed_run_resumes_policy_critic_and_kl_coefficient(tmp_path: Path) -> None:
    whole, harmed = tmp_path / "whole", tmp_path / "harmed"
    finish(start_run(whole, *WORDS))
    rows = [row for row in exact_rows(whole) if row["stage"] == "grpo"]
    assert len(rows) == 6
    assert "policy/loss" not in rows[0] and all("policy/loss" in row for row in rows[1:])
    assert all(row["critic/loss"] > 0 for row in rows)
    assert len({row["kl/coefficient"] for row in rows}) > 1

    process = start_run(harmed, *WORDS)
    # The first checkpoint with a trained critic.
    kill_trainer(RunDir(harmed), process, step=42)
    finish(process)
    assert exact_rows(harmed) == exact_rows(whole)


def test_critic_and_reward_model_have_own_processes(tmp_path: Path) -> None:
    """As with --colocate_critic_reward: two critic ranks, each with a reward model, and one policy rank."""
    model = build_reward_model(tmp_path)
    words = [*WORDS, "critic.num_workers=2", f"reward.model.path={model}", "reward.model.device=critic"]
    finish(start_run(tmp_path / "run", *words, f"critic.init_from={model}", "trainer.num_steps=3"))
    rows = [row for row in exact_rows(tmp_path / "run") if row["stage"] == "grpo"]
    assert len(rows) == 3 and all(row["critic/loss"] > 0 for row in rows)
    assert all(row["reward/mean"] == pytest.approx(row["score/model"]) for row in rows)
    names = {path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*/critic/*")}
    assert sum("rank" in name for name in names) == 2, names
