"""Teacher distances in the advantages, compared with an independent formula and a direct forward pass."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.credit import build_train_sequences
from slurm_rl.algorithms.filters import drop_without_gradient
from slurm_rl.algorithms.train_sequences import build_plain_sequences
from slurm_rl.config.algorithm import AlgorithmConfig, KLConfig
from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.frozen import FrozenModel
from slurm_rl.models.model_folder import require_same_tokens
from tests.tiny_models import TinyModel, build_tiny_model
from tests.unit.rl.test_token_advantages import GROUPS, advantages_of, draw_logprobs

SAMPLED = [np.asarray(item.logprobs) for group in GROUPS for item in group.completions]
TINY = TinyModel(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1)


def test_preset_sets_only_teacher() -> None:
    config, teacher = load_config(["+exp=demo", "+algorithm=distill"]).algorithm, draw_logprobs()
    found = advantages_of(config, teacher)
    for one, own, its in zip(found, SAMPLED, teacher, strict=True):
        assert one == pytest.approx(its - own, abs=1e-6)
    # Every token has a gradient, whatever the rewards are.
    assert len(drop_without_gradient(build_train_sequences(GROUPS, config, teacher), config)) == len(SAMPLED)


@pytest.mark.parametrize("name", ["group_norm", "reinforce_pp", "turn_rloo"])
def test_teacher_term_is_added_to_advantages(name: str) -> None:
    rewarded = AlgorithmConfig(advantage=name, group_size=3)
    both = rewarded.model_copy(update={"kl": KLConfig(coef=0.25, estimator="k1", apply_to="advantage")})
    teacher = draw_logprobs()
    plain = advantages_of(rewarded, None)
    for one, before, own, its in zip(advantages_of(both, teacher), plain, SAMPLED, teacher, strict=True):
        assert one == pytest.approx(before + 0.25 * (its - own), abs=1e-6)


def test_advantages_equal_direct_forward_of_teacher(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    build_tiny_model(TINY, 3, tmp_path / "teacher")
    device, folder = torch.device("cpu"), tmp_path / "teacher"
    frozen = FrozenModel(folder, ModelConfig(path=str(folder)), PolicyConfig(), 1.0, device)
    sequences = build_plain_sequences(GROUPS)
    [asked] = frozen.compute_logprobs([sequences])
    found = advantages_of(load_config(["+exp=demo", "+algorithm=distill"]).algorithm, asked)
    teacher = AutoModelForCausalLM.from_pretrained(folder).eval()
    for one, sequence, own in zip(found, sequences, SAMPLED, strict=True):
        tokens = torch.from_numpy(sequence.token_ids)
        with torch.no_grad():
            logprobs = torch.log_softmax(teacher(tokens[None]).logits[0].double(), -1)
        first = sequence.trained_from
        direct = logprobs[first - 1 : -1].gather(-1, tokens[first:, None])[:, 0].numpy()
        assert one == pytest.approx(direct - own, abs=1e-5)


def test_teacher_with_other_vocabulary_is_refused(tmp_path: Path) -> None:
    build_tiny_model(TINY, 0, tmp_path / "policy")
    build_tiny_model(TINY, 1, tmp_path / "same")
    build_tiny_model(replace(TINY, characters="0123456789=+"), 1, tmp_path / "other")
    policy = str(tmp_path / "policy")
    require_same_tokens("reference.path", str(tmp_path / "same"), policy, False)
    with pytest.raises(
        ConfigError, match=r"reference.path must be a model with the same token ids as the policy.*'[+=]' is token"
    ):
        require_same_tokens("reference.path", str(tmp_path / "other"), policy, False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["reference.path=/teacher"], "reference.path needs algorithm.kl.coef > 0"),
        (["+algorithm=distill", "algorithm.kl.estimator=k3"], "must be k1 with algorithm.kl.apply_to=advantage"),
    ],
)
def test_impossible_teacher_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(["+exp=demo", *words])
