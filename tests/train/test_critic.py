"""The critic on a real model: position of values, learning, initial weights, resume."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.reward_model import ScoreStatistics
from slurm_rl.workers.critic import build_critic_loss, read_before
from tests.tiny_models import TinyVL, build_tiny_model


def build_critic(folder: Path, init_from: Path | None = None, seed: int = 1) -> PolicyEngine:
    config = ModelConfig(path=str(folder), init_from=str(init_from) if init_from else None)
    optim = OptimConfig(lr=3e-3)
    return PolicyEngine(folder, config, PolicyConfig(num_threads=1), optim, temperature=1.0, score_seed=seed)


def build_completions() -> list[TrainSequence]:
    random = np.random.default_rng(0)
    found = []
    for prompt, length in ((1, 3), (4, 1), (3, 5)):
        returns = np.full(length, float(random.normal()), dtype=np.float32)
        tokens = random.integers(2, 14, prompt + length)
        values = np.zeros(length, dtype=np.float32)
        found.append(
            TrainSequence(token_ids=tokens, trained_from=prompt, weight=1 / 9, old_values=values, returns=returns)
        )
    return found


def values_of(critic: PolicyEngine, sequences: list[TrainSequence]) -> list[list[float]]:
    [found] = critic.compute_scores([[read_before(sequence) for sequence in sequences]])
    return [values.tolist() for values in found]


def test_values_depend_only_on_earlier_tokens(folder: Path) -> None:
    critic, sequences = build_critic(folder), build_completions()
    packed = values_of(critic, sequences)
    for sequence, values in zip(sequences, packed, strict=True):
        assert len(values) == sequence.num_trained
        with torch.no_grad():
            scores = critic.module(input_ids=torch.from_numpy(sequence.token_ids)[None], use_cache=False).logits
        expected = scores[0, sequence.trained_from - 1 : -1, 0].tolist()
        assert values == pytest.approx(expected, abs=1e-6)
    changed = [replace(s, token_ids=np.append(s.token_ids[:-1], 15 - s.token_ids[-1])) for s in sequences]
    assert values_of(critic, changed) == packed, "the last token is what the last value is about"


def test_critic_learns_returns_and_resumes(folder: Path, tmp_path: Path) -> None:
    critic, sequences = build_critic(folder), build_completions()
    read = [read_before(sequence) for sequence in sequences]
    losses = [critic.train([read], build_critic_loss(None), 3e-3)["loss"] for _ in range(30)]
    assert losses[-1] < 0.2 * losses[0]
    critic.save(tmp_path)
    other = build_critic(folder, seed=2)
    assert values_of(other, sequences) != values_of(critic, sequences)
    other.load(tmp_path)
    assert values_of(other, sequences) == values_of(critic, sequences)
    steps = [engine.train([read], build_critic_loss(0.2), 1e-3) for engine in (critic, other)]
    assert steps[0] == steps[1]


def test_critic_values_are_invariant_to_reward_scale(folder: Path) -> None:
    unit = ScoreStatistics(mean=2.0, std=0.5)
    critic, sequences = build_critic(folder), build_completions()
    read = [read_before(sequence) for sequence in sequences]
    losses = [critic.train([read], build_critic_loss(None, unit), 3e-3)["loss"] for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
    values = [unit.normalize(np.array(row, dtype=np.float32)) for row in values_of(critic, sequences)]
    returns = [sequence.returns for sequence in sequences if sequence.returns is not None]
    error = np.concatenate(values) - np.concatenate(returns)
    assert 0.5 * np.square(error).mean() < 0.25 * losses[0]


def test_critic_without_classifier_class_is_refused(tmp_path: Path) -> None:
    build_tiny_model(TinyVL(family="qwen2_5_vl"), seed=0, folder=tmp_path / "vl")
    with pytest.raises(ConfigError, match=r"a sequence classifier; got qwen2_5_vl in .*\+algorithm=grpo"):
        build_critic(tmp_path / "vl")


def test_check_inputs_refuses_vision_model_as_reward_model() -> None:
    """test_preset_table.py shows the same for a critic."""
    with pytest.raises(ConfigError, match=r"needs a text model.*task=rm trains a reward model"):
        check_inputs(load_config(["+exp=rm_tiny", "model=tiny_qwen2_5_vl"]), print)


def test_critic_starts_from_reward_model_head(folder: Path, tmp_path: Path) -> None:
    reward = build_critic(folder, seed=5)
    reward.export(tmp_path / "rm")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm").num_labels == 1
    critic = build_critic(folder, init_from=tmp_path / "rm", seed=6)
    assert values_of(critic, build_completions()) == values_of(reward, build_completions())
