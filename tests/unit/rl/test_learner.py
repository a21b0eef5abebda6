"""One learner step with and without critic. Uses no Ray and no model."""

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.groups import Group, Prompts
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.trainers.grpo.batch_queue import Collected
from slurm_rl.trainers.grpo.learner import Learner
from slurm_rl.trainers.grpo.trainer import GRPOTrainer, StepResult, collect_rarely, collect_step
from tests.unit.rl.batch_kit import make_group

WORDS = ("+algorithm=ppo", "trainer.prompts_per_step=4", "trainer.num_minibatches=2", "trainer.num_epochs=2")


class Policy:
    """Record the training batches."""

    def __init__(self) -> None:
        self.trained: list[tuple[list[TrainSequence], float]] = []
        self.lrs: list[float] = []
        self.packed = True

    def compute(self, method: str, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        return [np.full(sequence.num_trained, -1.5, dtype=np.float32) for sequence in sequences]

    def train(self, method: str, batch: list[TrainSequence], algorithm: AlgorithmConfig, lr: float) -> dict[str, float]:
        assert method == "train"
        self.trained.append((batch, algorithm.kl.coef))
        self.lrs.append(lr)
        return {"loss": 0.0, "grad_norm": 1.0}


class Rows(MetricsLogger):
    """Record the metric rows."""

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


def make_learner(*words: str, ppo: bool = True) -> tuple[Learner, Policy, Critic]:
    policy, critic = Policy(), Critic()
    parts: Any = (policy, policy, critic if ppo else None)
    config = load_config(["+exp=demo", *(WORDS if ppo else ()), "warmup.num_steps=0", *words])
    return Learner(config, *parts), policy, critic


def test_policy_and_critic_learn_of_same_minibatches() -> None:
    learner, policy, critic = make_learner()
    learned = learner.learn(make_groups(), 0, None)
    assert (len(learned.totals), learned.num_tokens) == (4, 2 * 8)
    [batches] = critic.trained
    assert [len(batch) for batch in batches] == [2, 2, 2, 2]
    assert [len(batch) for batch, _ in policy.trained] == [2, 2, 2, 2]
    advantages = [sequence.advantages for batch, _ in policy.trained[:2] for sequence in batch]
    tokens = np.concatenate([one for one in advantages if one is not None])
    assert (tokens.mean(), tokens.std()) == pytest.approx((0.0, 1.0), abs=1e-5)
    assert learned.metrics["critic/loss"] == 0.25
    assert learned.metrics["critic/value_mean"] == 0.5


def test_critic_is_trained_first() -> None:
    """The policy's schedule and the KL coefficient change only after the critic is trained."""
    words = ("critic.warmup_steps=3", "optim.schedule=linear", "optim.warmup_steps=2", "optim.lr=1.0")
    learner, policy, critic = make_learner(*words, "algorithm.kl.target=1.0", "trainer.num_steps=5")
    for step in range(3):
        learned = learner.learn(make_groups(), step, None)
        assert (learned.totals, learned.num_tokens, learned.kl_coefficient) == ([], 0, None)
        assert (learned.metrics["policy/lr"], learned.metrics["policy/optimizer_steps"]) == (0.0, 0.0)
    assert (len(critic.trained), policy.trained) == (3, [])
    learned = learner.learn(make_groups(), 3, None)
    assert len(policy.trained) == 4
    assert learned.kl_coefficient is not None
    learner.learn(make_groups(), 4, learned.kl_coefficient)
    # The policy's first two steps are its learning-rate warm-up, at the run's fourth and fifth step.
    assert policy.lrs == [0.5] * 4 + [1.0] * 4


def test_row_has_learning_rate_of_its_step(tmp_path: Path) -> None:
    learner, policy, _ = make_learner("optim.schedule=constant", "optim.warmup_steps=4", "optim.lr=1.0")
    nothing: Any = None
    rows = Rows()
    prompts = Prompts([group.prompt for group in make_groups()], [], [])
    sync = SimpleNamespace(num_bytes=0)
    parts: Any = (learner.config, RunDir(tmp_path), prompts, learner, nothing, nothing, sync, nothing, rows)
    trainer = GRPOTrainer(*parts)
    groups = [*make_groups(), make_group(4, [None])]
    for step in range(3):
        learned = learner.learn(groups, step, None)
        trainer.state.step += 1  # the loop does this before it logs
        trainer.log(StepResult(Collected(groups, groups, 1), learned, 0.0, {"time/step_s": 1.0}))
    assert [row["policy/lr"] for row in rows.rows] == policy.lrs[::4] == [0.25, 0.5, 0.75]
    # Two epochs; the failed completion is sampled and not trained on.
    tokens = {"tokens/sampled": 10, "tokens/trained": 8, "tokens/computed": 16, "policy/optimizer_steps": 4}
    assert {**rows.rows[0], **tokens, "reward/failed": 1, "entropy/sampled": 0.5} == rows.rows[0]


def test_epochs_reshuffle_groups_also_after_resume() -> None:
    words = ("trainer.prompts_per_step=16", "trainer.num_minibatches=4", "trainer.num_epochs=2")
    dealt = []
    for step in (3, 3, 4):
        learner, policy, _ = make_learner(*words)
        learner.learn(make_groups([float(i % 3) for i in range(16)]), step, None)
        dealt.append([sorted(int(item.token_ids[0]) for item in batch) for batch, _ in policy.trained])
    assert dealt[0] == dealt[1] != dealt[2]
    first, second = dealt[0][:4], dealt[0][4:]
    assert first != second
    assert sorted(i for part in first for i in part) == sorted(i for part in second for i in part) == list(range(16))


def test_minibatch_without_gradient_changes_nothing() -> None:
    """Even a zero gradient would move the weights, by Adam's momentum."""
    words = ("+algorithm=dapo", "algorithm.group_size=2", "algorithm.filters.drop_zero_variance_groups=false")
    config = ("algorithm.dynamic_sampling_rounds=1", "trainer.prompts_per_step=4", "trainer.num_minibatches=2")
    learner, policy, _ = make_learner(*words, *config, ppo=False)
    equal, unequal = ([make_group(i, pair) for i in range(4)] for pair in ((1.0, 1.0), (1.0, 0.0)))
    learned = learner.learn(equal, 0, None)
    assert (learned.totals, learned.num_tokens, policy.trained, learned.metrics["policy/lr"]) == ([], 0, [], 0.0)
    learned = learner.learn([*equal[:3], unequal[3]], 1, None)
    assert (len(learned.totals), learned.num_tokens, learned.metrics["policy/optimizer_steps"]) == (1, 4, 1.0)
    [(batch, _)] = policy.trained
    assert [item.weight for item in batch] == [1 / 8] * 2  # per minibatch of two groups


def test_step_with_only_failed_rewards_changes_nothing() -> None:
    learner, policy, critic = make_learner("algorithm.kl.target=1.0")
    learned = learner.learn(make_groups([None] * 4), 0, None)
    assert (learned.totals, learned.num_tokens, learned.kl_coefficient) == ([], 0, None)
    assert (policy.trained, critic.trained) == ([], [])


def test_kl_coefficient_moves_from_step_to_step() -> None:
    words = ("algorithm.kl.coef=0.1", "algorithm.kl.target=1.0", "algorithm.kl.horizon=40")
    learner, policy, _ = make_learner(*words)
    # k1 of two tokens: 2 * (-0.5 + 1.5) = 2 nats, twice the target: 20 % * 4 completions / 40.
    learned = learner.learn(make_groups(), 0, None)
    assert learned.metrics["kl/completion"] == 2.0
    assert learned.kl_coefficient == pytest.approx(0.1 * 1.02)
    learner.learn(make_groups(), 1, learned.kl_coefficient)
    assert [coefficient for _, coefficient in policy.trained] == pytest.approx([0.1] * 4 + [0.102] * 4)


@pytest.fixture(autouse=True)
def rarely() -> Iterator[None]:
    before = gc.get_threshold()
    collect_rarely()
    gc.collect()
    yield
    gc.set_threshold(*before)


class Node:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_of_step_are_collected() -> None:
    left = weakref.ref(Node())
    assert left() is not None
    collect_step()
    assert left() is None


def test_long_lived_lists_are_not_scanned() -> None:
    begun: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        under_way = [[number] for number in range(50_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(under_way) == 50_000 and not begun
