"""Policy, reference, critic and export have the same extended context, per token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.frozen import FrozenModel
from slurm_rl.models.load_model import load_model
from slurm_rl.models.model_folder import load_context
from slurm_rl.models.policy import PolicyEngine
from tests.tiny_models import SMALL, build_tiny_model

CPU = torch.device("cpu")
LONG = {"rope_type": "longrope", "long_factor": [1 + place / 4 for place in range(16)]}


@pytest.mark.parametrize("scaling", [{"rope_type": "yarn"}, {"rope_type": "linear"}, LONG])
def test_policy_reference_and_export_have_extended_context(scaling: dict[str, Any], tmp_path: Path) -> None:
    folder, length = tmp_path / "model", 4 * SMALL.context_length
    build_tiny_model(SMALL, 0, folder)
    ids = np.random.default_rng(0).integers(2, 14, length)
    # Alone and behind a short one in a packed row: no scaling may depend on the longest sequence.
    sequences = [TrainSequence(token_ids=ids[:20], trained_from=1), TrainSequence(token_ids=ids, trained_from=1)]
    model = ModelConfig(path=str(folder), rope_scaling={"factor": 4, **scaling})
    policy_config = PolicyConfig(num_threads=1)
    policy = PolicyEngine(folder, model, policy_config, OptimConfig(), temperature=1.0)
    [[short, long]] = policy.compute_logprobs([sequences])
    np.testing.assert_allclose(policy.compute_logprobs([sequences[:1]])[0][0], short, atol=1e-5)
    np.testing.assert_array_equal(
        FrozenModel(folder, model, policy_config, 1.0, CPU).compute_logprobs([sequences])[0][1], long
    )
    policy.export(tmp_path / "export")
    for path, is_scaled in ((tmp_path / "export", True), (folder, False)):
        with torch.no_grad():
            plain = AutoModelForCausalLM.from_pretrained(path)
            table = plain.eval()(input_ids=torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
        found = table[:-1].gather(1, torch.from_numpy(ids)[1:, None])[:, 0].numpy()
        assert (float(np.abs(found - long).max()) < 1e-5) == is_scaled
    # The export needs no key, and the key changes nothing.
    export = str(tmp_path / "export")
    assert load_context(export, ModelConfig(path=export)) == load_context(export, model) == length
    assert load_model(export, model).config.rope_parameters == policy.module.config.rope_parameters


def test_critic_has_extended_context(tmp_path: Path) -> None:
    build_tiny_model(SMALL, 0, tmp_path / "model")
    model = ModelConfig(path=str(tmp_path / "model"), rope_scaling={"factor": 4})
    critic = load_model(tmp_path / "model", model, score_seed=1)
    assert critic.config.rope_parameters["rope_type"] == "yarn"


def test_load_model_refuses_scaling_of_learned_positions(tmp_path: Path) -> None:
    build_tiny_model(SMALL, 0, tmp_path / "model")
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=14)).save_pretrained(tmp_path / "gpt2")
    config = ModelConfig(path=str(tmp_path / "gpt2"), rope_scaling={"factor": 4})
    with pytest.raises(ConfigError, match=r"model\.rope_scaling must fit.*no rotary positions"):
        load_model(tmp_path / "gpt2", config)
