"""Completions with a shared prompt in one row get the numbers of separate sequences."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.forward import RowReader
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.row_layout import require_maskable
from tests.tiny_models import build_tiny_model
from tests.train.conftest import SMALL
from tests.train.test_engine_policy import CPU, FAMILIES, OPTIM, cross_entropy


def build_groups(seed: int = 0, group_size: int = 3) -> list[TrainSequence]:
    """Build groups with many lengths of prompts and completions; one prompt is a prefix of another."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(2, 14, n) for n in (9, 1, 5)]
    prompts.append(prompts[0][:4])
    found = []
    for prompt in prompts:
        for _ in range(group_size):
            ids = np.concatenate([prompt, random.integers(2, 14, int(random.integers(1, 12)))])
            found.append(
                TrainSequence(token_ids=ids, trained_from=len(prompt), weight=float(random.uniform(0.01, 0.1)))
            )
    return found


@pytest.mark.parametrize("attention", ["sdpa", "varlen", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_prompts_change_no_logprob(family: str, attention: str) -> None:
    torch.manual_seed(0)
    config: PretrainedConfig = FAMILIES[family]
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().train()
    for sequences in (build_groups(), build_groups(1, group_size=1), build_groups(2)[2:7]):
        apart = RowReader(model, CPU).compute_logprobs(sequences, 0.7)
        shared = RowReader(model, CPU, prefix_sharing=True).compute_logprobs(sequences, 0.7)
        for one, other in zip(apart, shared, strict=True):
            np.testing.assert_allclose(one, other, atol=5e-6)


@pytest.mark.parametrize(("checkpointing", "chunk_tokens"), [(False, None), (True, 5)])
def test_shared_prompts_give_identical_steps(tmp_path: Path, checkpointing: bool, chunk_tokens: int | None) -> None:
    build_tiny_model(SMALL, seed=0, folder=tmp_path / "model")
    model = ModelConfig(path=str(tmp_path / "model"), gradient_checkpointing=checkpointing)
    engines = [
        PolicyEngine(
            tmp_path / "model",
            model,
            PolicyConfig(num_threads=1, prefix_sharing=share, logprob_chunk_tokens=chunk_tokens),
            OPTIM,
            temperature=1.0,
        )
        for share in (False, True)
    ]
    for step in range(4):
        batches = [build_groups(step), build_groups(10 + step)]
        apart, shared = (engine.train(batches, cross_entropy, 1e-2) for engine in engines)
        assert shared == pytest.approx(apart, rel=1e-5)
    apart, shared = (dict(engine.full_state()) for engine in engines)
    for name, tensor in apart.items():
        torch.testing.assert_close(shared[name], tensor, atol=1e-5, rtol=0.0)


def test_model_without_mask_support_is_refused() -> None:
    config = FAMILIES["llama"].__class__(**FAMILIES["llama"].to_dict())
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="flash_attention_2"):
        require_maskable(config)
    config._attn_implementation = "sdpa"
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="sliding_attention"):
        require_maskable(config)
