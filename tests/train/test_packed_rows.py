"""Sequences packed in one row get the numbers of the plain model on separate rows.

Also with shared prompts, temperatures of their own, and logits in chunks.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.forward import RowReader
from slurm_rl.models.frozen import FrozenModel
from slurm_rl.models.row_layout import require_maskable
from tests.train.test_engine_policy import CPU, build_engine, build_sequences, cross_entropy

SHAPE: dict[str, object] = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "qwen2": Qwen2Config(**SHAPE),
    "llama": LlamaConfig(**SHAPE),
}
TEMPERATURES = (0.5, 1.0, 1.6, 0.7)


def build_groups(seed: int = 0, group_size: int = 3) -> list[TrainSequence]:
    """Build groups with many lengths of prompts and completions; one prompt is a prefix of another."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(2, 14, n) for n in (9, 1, 5)]
    prompts.append(prompts[0][:4])
    found = []
    for prompt in prompts:
        for _ in range(group_size):
            ids = np.concatenate([prompt, random.integers(2, 14, int(random.integers(1, 12)))])
            weight = float(random.uniform(0.01, 0.1))
            found.append(TrainSequence(token_ids=ids, trained_from=len(prompt), weight=weight))
    return found


def set_temperatures(sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
    """Give each group of three its own temperature."""
    return [replace(one, temperature=TEMPERATURES[place // 3]) for place, one in enumerate(sequences)]


def compute_unpacked(model: torch.nn.Module, sequence: TrainSequence, temperature: float) -> tuple[Tensor, Tensor]:
    """Return logprobs and entropy of the plain model: full logits, no positions, no packing."""
    ids = torch.from_numpy(sequence.token_ids)
    log_p = torch.log_softmax(model(ids[None]).logits[0].float() / temperature, -1)[sequence.trained_from - 1 : -1]
    chosen = log_p.gather(1, ids[sequence.trained_from :, None])[:, 0]
    return chosen, -(log_p.exp() * log_p).sum(-1)


def build_model(config: PretrainedConfig, attention: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().train()
    return model


@pytest.mark.parametrize("attention", ["sdpa", "varlen", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_packed_logprobs_equal_plain_model(family: str, attention: str) -> None:
    model = build_model(FAMILIES[family], attention)
    for sequences in (build_sequences(9), build_groups(), build_groups(1, group_size=1), build_groups(2)[2:7]):
        expected = [compute_unpacked(model, one, 0.7)[0].numpy() for one in sequences]
        for shared in (False, True):
            found = RowReader(model, CPU, prefix_sharing=shared).compute_logprobs(sequences, 0.7)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, atol=5e-6 if shared else 2e-6)


@pytest.mark.parametrize("chunk_tokens", [None, 1, 5, 1000])
@pytest.mark.parametrize(
    ("attention", "shared", "packed", "tied", "entropy_gradient"),
    [
        ("sdpa", False, True, True, True),
        ("sdpa", True, True, True, True),
        ("sdpa", False, False, True, True),
        ("varlen", False, True, True, True),
        ("sdpa", False, True, False, True),
        ("sdpa", False, True, True, False),
    ],
)
def test_mixed_row_equals_separate_rows(
    attention: str, shared: bool, packed: bool, tied: bool, entropy_gradient: bool, chunk_tokens: int | None
) -> None:
    """Logprobs, entropies and every gradient of both; each group has its own temperature."""
    model = build_model(Qwen3Config(**{**SHAPE, "tie_word_embeddings": tied}, head_dim=16), attention)
    sequences = set_temperatures(build_groups())
    pairs = [compute_unpacked(model, one, one.temperature or 0.0) for one in sequences]
    logprobs, entropy = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    weights = torch.linspace(0.5, 1.5, len(logprobs))
    ((logprobs * weights).sum() + 3 * entropy_gradient * entropy.sum()).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    reader = RowReader(model, CPU, chunk_tokens=chunk_tokens, prefix_sharing=shared, packed=packed)
    found, found_entropy = reader.forward(reader.build_batch(sequences), 9.0, entropy_gradient=entropy_gradient)
    assert found_entropy.requires_grad == entropy_gradient
    torch.testing.assert_close(found, logprobs, rtol=0, atol=1e-5)
    torch.testing.assert_close(found_entropy, entropy, rtol=0, atol=1e-5)
    ((found * weights).sum() + 3 * found_entropy.sum()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradients[name], rtol=1e-4, atol=1e-5 * float(gradients[name].abs().max()))
    assert "forward" not in model.get_output_embeddings().__dict__


def test_policy_and_reference_use_temperature_of_each(folder: Path) -> None:
    engine, model = build_engine(folder, 9.0), ModelConfig(path=str(folder))
    reference = FrozenModel(folder, model, PolicyConfig(num_threads=1), 9.0, CPU)
    sequences = set_temperatures(build_groups())
    [by_policy], [by_reference] = engine.compute_logprobs([sequences]), reference.compute_logprobs([sequences])
    for place, one in enumerate(sequences):
        with torch.no_grad():
            expected = compute_unpacked(engine.module, one, one.temperature or 0.0)[0].numpy()
        np.testing.assert_allclose(by_policy[place], expected, atol=1e-5)
        np.testing.assert_allclose(by_reference[place], expected, atol=1e-5)


def test_equal_temperatures_give_identical_bits(folder: Path) -> None:
    """Some micro-batches are empty."""
    one, other = build_engine(folder, 0.8), build_engine(folder, 9.0)
    for step in range(3):
        plain = build_groups(step)
        equal = [replace(sequence, temperature=0.8) for sequence in plain]
        found = [
            engine.train([part[:5], [], part[5:]], cross_entropy, 1e-2)
            for engine, part in ((one, plain), (other, equal))
        ]
        assert found[0] == found[1]
    for (_, tensor), (_, same) in zip(one.full_state(), other.full_state(), strict=True):
        assert torch.equal(tensor, same)


@pytest.mark.parametrize(("checkpointing", "chunk_tokens"), [(False, None), (True, 5)])
def test_shared_prompts_give_identical_steps(folder: Path, checkpointing: bool, chunk_tokens: int | None) -> None:
    engines = [
        build_engine(
            folder,
            policy={"prefix_sharing": shared, "logprob_chunk_tokens": chunk_tokens},
            gradient_checkpointing=checkpointing,
        )
        for shared in (False, True)
    ]
    for step in range(4):
        batches = [build_groups(step), build_groups(10 + step)]
        apart, together = (engine.train(batches, cross_entropy, 1e-2) for engine in engines)
        assert together == pytest.approx(apart, rel=1e-5)
    expected, found = (dict(engine.full_state()) for engine in engines)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=0.0)


def test_model_without_mask_support_is_refused() -> None:
    config = LlamaConfig(**SHAPE)
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="flash_attention_2"):
        require_maskable(config)
    config._attn_implementation = "sdpa"
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="sliding_attention"):
        require_maskable(config)
