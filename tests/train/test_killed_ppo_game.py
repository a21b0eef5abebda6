"""PPO on the guessing game learns, is killed in a turn, and resumes to identical metrics; real Ray, vLLM and torch."""

from pathlib import Path
from statistics import mean

import pytest

from tests.killed_game.game import Game
from tests.killed_game.run_state import read_state, read_trained
from tests.whole_run import exact_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PPO = (
    "+algorithm=ppo",
    "algorithm.group_size=8",
    "algorithm.kl.coef=0.001",
    "critic.optim.lr=3e-3",
    "critic.warmup_steps=1",
    "trainer.num_minibatches=2",
    "trainer.num_steps=20",
    "eval.interval=20",
)


def test_ppo_with_environment_learns_and_resumes_identically(tmp_path: Path) -> None:
    whole, killed = Game(tmp_path / "whole", *PPO), Game(tmp_path / "killed", *PPO)
    whole.finish()
    steps = [row for row in exact_rows(whole.run.path) if row["stage"] == "grpo"]
    assert len(steps) == 20
    rewards = [row["reward/mean"] for row in steps]
    assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.05, rewards
    assert all(row["critic/loss"] > 0 and row["episode/masked"] > 0 for row in steps)
    # The first step trains only the critic.
    assert "policy/grad_norm" not in steps[0] and all(row["policy/grad_norm"] > 0 for row in steps[1:])

    # In the third turn of step 7; the newest checkpoint is of step 6.
    killed.kill_in(7, 2, saved=6)
    known = read_state(killed, waves=True, ahead=0).sampled
    killed.finish()
    assert exact_rows(killed.run.path) == exact_rows(whole.run.path)
    assert known.items() <= read_trained(killed.run).items()
