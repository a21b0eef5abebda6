"""One training step of the loop with a critic: who learns what, and what is remembered. No Ray, no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.load import load_config
from slurm_rl.run_dir import RunDir
from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.grpo.saving import RunState
from slurm_rl.train.grpo.trainer import GRPOTrainer
from slurm_rl.train.grpo.types import Completion, Group, Prompts
from slurm_rl.train.rewards.types import RewardItem, RewardResult
from slurm_rl.train.saving import parse_state
from slurm_rl.train.types import FloatArray, TrainSequence

WORDS = ("+algorithm=ppo", "trainer.prompts_per_step=4", "trainer.num_minibatches=2", "trainer.num_epochs=2")


class Policy:
    """Keeps what it was given to train on."""

    def __init__(self) -> None:
        self.trained: list[tuple[list[TrainSequence], float]] = []

    def reference_logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [np.full(sequence.num_trained, -1.5, dtype=np.float32) for sequence in sequences]

    def train_policy(self, batch: list[TrainSequence], algorithm: AlgorithmConfig, lr: float) -> dict[str, float]:
        self.trained.append((batch, algorithm.kl.coefficient))
        return {"loss": 0.0, "grad_norm": 1.0}


class Critic:
    def __init__(self) -> None:
        self.trained: list[Sequence[Sequence[TrainSequence]]] = []

    def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [np.full(sequence.num_trained, 0.5, dtype=np.float32) for sequence in sequences]

    def train(self, batches: Sequence[Sequence[TrainSequence]], clip: float | None, lr: float) -> dict[str, float]:
        self.trained.append(batches)
        return {"critic/loss": 0.25}


def make_groups() -> list[Group]:
    found = []
    for index, value in enumerate((1.0, 0.0, 1.0, 0.0)):
        result = RewardResult(item=RewardItem(completion="7", answer="7"), value=value, failure=None)
        completion = Completion([9, 1], [-0.5, -0.5], "7", False, 0)
        found.append(Group(EncodedPrompt(index=index, token_ids=[5, 6], text="3", answer="7"), [completion], [result]))
    return found


def make_trainer(tmp_path: Path, *words: str) -> tuple[GRPOTrainer, Policy, Critic]:
    policy, critic = Policy(), Critic()
    nothing: Any = None
    parts: Any = (policy, nothing, nothing, nothing, nothing, nothing, critic)
    config = load_config([*WORDS, "warmup.num_steps=0", *words])
    return GRPOTrainer(config, RunDir(tmp_path), Prompts(make_prompts(), [], []), *parts), policy, critic


def make_prompts() -> list[EncodedPrompt]:
    return [group.prompt for group in make_groups()]


def test_policy_and_critic_learn_of_the_same_minibatches(tmp_path: Path) -> None:
    trainer, policy, critic = make_trainer(tmp_path)
    totals, num_tokens = trainer.train(make_groups())
    assert (len(totals), num_tokens) == (4, 2 * 8)
    [batches] = critic.trained
    assert [len(batch) for batch in batches] == [2, 2, 2, 2]
    assert [len(batch) for batch, _ in policy.trained] == [2, 2, 2, 2]
    advantages = [sequence.advantages for batch, _ in policy.trained[:2] for sequence in batch]
    tokens = np.concatenate([one for one in advantages if one is not None])
    assert (tokens.mean(), tokens.std()) == pytest.approx((0.0, 1.0), abs=1e-5)
    assert trainer.extra["critic/loss"] == 0.25
    assert trainer.extra["critic/value_mean"] == 0.5


def test_the_critic_learns_alone_at_first(tmp_path: Path) -> None:
    trainer, policy, critic = make_trainer(tmp_path, "critic.warmup_steps=1")
    assert trainer.train(make_groups()) == ([], 0)
    assert (len(critic.trained), policy.trained) == (1, [])
    trainer.state.step += 1
    trainer.train(make_groups())
    assert len(policy.trained) == 4


def test_the_kl_coefficient_moves_from_step_to_step_and_lives_in_the_state(tmp_path: Path) -> None:
    words = ("algorithm.kl.coefficient=0.1", "algorithm.kl.target=1.0", "algorithm.kl.horizon=40")
    trainer, policy, _ = make_trainer(tmp_path, *words)
    # k1 of two tokens: 2 * (-0.5 + 1.5) = 2 nats, twice the target: 20 % * 4 completions / 40.
    trainer.train(make_groups())
    assert trainer.extra["kl/completion"] == 2.0
    assert trainer.state.kl_coefficient == pytest.approx(0.1 * 1.02)
    trainer.state = parse_state(RunState, asdict(trainer.state))
    trainer.train(make_groups())
    assert [coefficient for _, coefficient in policy.trained] == pytest.approx([0.1] * 4 + [0.102] * 4)
