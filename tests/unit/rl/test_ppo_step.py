"""One training step of the loop with a critic: who learns what, and what is remembered. No Ray, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_rl.checkpoints.step_saver import parse_state
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.math.sequences import FloatArray, TrainSequence
from slurm_rl.report.metrics import MetricsLogger
from slurm_rl.rl.groups import Group, Prompts
from slurm_rl.rl.loop.collect import Collected
from slurm_rl.rl.loop.run_state import RunState
from slurm_rl.rl.loop.trainer import GRPOTrainer
from slurm_rl.run_dir import RunDir
from tests.unit.rl.batch_kit import make_group

WORDS = ("+algorithm=ppo", "trainer.prompts_per_step=4", "trainer.num_minibatches=2", "trainer.num_epochs=2")


class Policy:
    """Keeps what it was given to train on."""

    def __init__(self) -> None:
        self.trained: list[tuple[list[TrainSequence], float]] = []
        self.lrs: list[float] = []
        self.packed = True

    def reference_logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [np.full(sequence.num_trained, -1.5, dtype=np.float32) for sequence in sequences]

    def train_policy(self, batch: list[TrainSequence], algorithm: AlgorithmConfig, lr: float) -> dict[str, float]:
        self.trained.append((batch, algorithm.kl.coefficient))
        self.lrs.append(lr)
        return {"loss": 0.0, "grad_norm": 1.0}


class Rows(MetricsLogger):
    """Keeps what would be written."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self.rows.append(dict(values))


class Critic:
    def __init__(self) -> None:
        self.trained: list[Sequence[Sequence[TrainSequence]]] = []

    def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [np.full(sequence.num_trained, 0.5, dtype=np.float32) for sequence in sequences]

    def train(self, batches: Sequence[Sequence[TrainSequence]], clip: float | None, lr: float) -> dict[str, float]:
        self.trained.append(batches)
        return {"critic/loss": 0.25}


def make_groups(values: Sequence[float | None] = (1.0, 0.0, 1.0, 0.0)) -> list[Group]:
    return [make_group(index, [value]) for index, value in enumerate(values)]


def make_trainer(tmp_path: Path, *words: str) -> tuple[GRPOTrainer, Policy, Critic]:
    policy, critic = Policy(), Critic()
    nothing: Any = None
    parts: Any = (policy, nothing, nothing, nothing, nothing, nothing, critic)
    config = load_config(["+exp=demo", *WORDS, "warmup.num_steps=0", *words])
    return GRPOTrainer(config, RunDir(tmp_path), Prompts(make_prompts(), [], []), *parts), policy, critic


def make_trainer_without_critic(tmp_path: Path, *words: str) -> tuple[GRPOTrainer, Policy]:
    policy, nothing = Policy(), None
    parts: Any = (policy, nothing, nothing, nothing, nothing, nothing)
    config = load_config(["+exp=demo", "warmup.num_steps=0", *words])
    return GRPOTrainer(config, RunDir(tmp_path), Prompts(make_prompts(), [], []), *parts), policy


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
    """Neither the policy's schedule nor the KL coefficient moves before the policy does."""
    words = ("critic.warmup_steps=3", "optim.schedule=linear", "optim.warmup_steps=2", "optim.lr=1.0")
    trainer, policy, critic = make_trainer(tmp_path, *words, "algorithm.kl.target=1.0", "trainer.num_steps=5")
    for _ in range(3):
        assert trainer.train(make_groups()) == ([], 0)
        assert (trainer.extra["policy/lr"], trainer.extra["policy/optimizer_steps"]) == (0.0, 0.0)
        trainer.state.step += 1
    assert (len(critic.trained), policy.trained, trainer.state.kl_coefficient) == (3, [], None)
    trainer.train(make_groups())
    assert len(policy.trained) == 4
    assert trainer.state.kl_coefficient is not None
    trainer.state.step += 1
    trainer.train(make_groups())
    # The first two of the policy's steps are those of its warm-up, though the run is in its fourth and fifth.
    assert policy.lrs == [0.5] * 4 + [1.0] * 4


def test_the_row_has_the_learning_rate_of_its_own_step(tmp_path: Path) -> None:
    trainer, policy, _ = make_trainer(tmp_path, "optim.schedule=constant", "optim.warmup_steps=4", "optim.lr=1.0")
    trainer.metrics = rows = Rows()
    groups = [*make_groups(), make_group(4, [None])]
    for _ in range(3):
        with trainer.timer.phase("step"):
            totals, num_tokens = trainer.train(groups)
        trainer.collected = Collected(groups, groups, 1)
        trainer.state.step += 1  # as the loop does before it logs
        trainer.log(groups, totals, num_tokens)
    assert [row["policy/lr"] for row in rows.rows] == policy.lrs[::4] == [0.25, 0.5, 0.75]
    # Two epochs; the failed completion is sampled and not trained on.
    tokens = {"tokens/sampled": 10, "tokens/trained": 8, "tokens/computed": 16, "policy/optimizer_steps": 4}
    assert {**rows.rows[0], **tokens, "reward/failed": 1, "entropy/sampled": 0.5} == rows.rows[0]


def test_epochs_deal_the_groups_out_anew_and_a_resumed_run_as_it_would_have(tmp_path: Path) -> None:
    words = ("trainer.prompts_per_step=16", "trainer.num_minibatches=4", "trainer.num_epochs=2")
    dealt = []
    for state in (RunState(step=3), RunState(step=3), RunState(step=4)):
        trainer, policy, _ = make_trainer(tmp_path, *words)
        trainer.state = state
        trainer.train(make_groups([float(i % 3) for i in range(16)]))
        dealt.append([sorted(int(item.token_ids[0]) for item in batch) for batch, _ in policy.trained])
    assert dealt[0] == dealt[1] != dealt[2]
    first, second = dealt[0][:4], dealt[0][4:]
    assert first != second
    assert sorted(i for part in first for i in part) == sorted(i for part in second for i in part) == list(range(16))


def test_a_minibatch_without_a_gradient_moves_nothing(tmp_path: Path) -> None:
    """No optimizer step: with Adam's momentum an empty one would move the weights."""
    words = ("+algorithm=dapo", "algorithm.group_size=2", "algorithm.filters.zero_variance=false")
    config = ("algorithm.dynamic_sampling_rounds=1", "trainer.prompts_per_step=4", "trainer.num_minibatches=2")
    trainer, policy = make_trainer_without_critic(tmp_path, *words, *config)
    equal, unequal = ([make_group(i, pair) for i in range(4)] for pair in ((1.0, 1.0), (1.0, 0.0)))
    assert trainer.train(equal) == ([], 0)
    assert (policy.trained, trainer.extra["policy/lr"]) == ([], 0.0)
    totals, num_tokens = trainer.train([*equal[:3], unequal[3]])
    assert (len(totals), num_tokens, trainer.extra["policy/optimizer_steps"]) == (1, 4, 1.0)
    [(batch, _)] = policy.trained
    assert [item.weight for item in batch] == [1 / 8] * 2  # of the whole minibatch: two groups


def test_a_step_whose_rewards_all_failed_moves_nothing(tmp_path: Path) -> None:
    trainer, policy, critic = make_trainer(tmp_path, "algorithm.kl.target=1.0")
    assert trainer.train(make_groups([None] * 4)) == ([], 0)
    assert (policy.trained, critic.trained, trainer.state.kl_coefficient) == ([], [], None)


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
