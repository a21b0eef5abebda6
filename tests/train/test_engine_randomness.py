"""Training is deterministic between two forward passes, and a resumed process continues the random sequence."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PreTrainedConfig,
)

from slurm_rl.algorithms.sequences import PackedBatch, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.models.load_model import load_model
from slurm_rl.models.policy import PolicyEngine
from tests.tiny_models import TinyModel, build_character_tokenizer
from tests.train.test_engine_policy import build_engine

WIDTH: dict[str, int] = {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
GPT2 = GPT2Config(vocab_size=16, n_embd=32, n_layer=2, n_head=2, n_positions=64, pad_token_id=0, eos_token_id=1)
# Dropout in layers, in functions that read the config, of whole layers, and router noise.
FAMILIES = {
    "gpt2": GPT2,
    "opt": OPTConfig(**WIDTH, ffn_dim=64, word_embed_proj_dim=32, dropout=0.1, attention_dropout=0.1, layerdrop=0.5),
    "llama": LlamaConfig(**WIDTH, intermediate_size=64, attention_dropout=0.1),
    "mixtral": MixtralConfig(**WIDTH, intermediate_size=64, num_key_value_heads=1, router_jitter_noise=0.1),
    "falcon": FalconConfig(**WIDTH, hidden_dropout=0.1, attention_dropout=0.1),
}


def build_folder(config: PreTrainedConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    build_character_tokenizer(TinyModel()).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("family", "score_seed"), [*((name, None) for name in FAMILIES), ("gpt2", 0), ("llama", 0)])
def test_train_mode_is_deterministic(family: str, score_seed: int | None, tmp_path: Path) -> None:
    folder = build_folder(FAMILIES[family], tmp_path / "model")
    config = ModelConfig(path=str(folder))
    model = load_model(folder, config, score_seed=score_seed)
    assert model.training
    first, *others = (model(input_ids=torch.arange(2, 14)[None]).logits for _ in range(8))
    assert all(torch.equal(first, other) for other in others)


def test_dropout_of_custom_layer_is_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    plain = LlamaMLP.__init__

    def build(self: nn.Module, config: PreTrainedConfig) -> None:
        plain(self, config)
        self.drop = nn.Dropout(0.1)

    folder = build_folder(FAMILIES["llama"], tmp_path / "model")
    monkeypatch.setattr(LlamaMLP, "__init__", build)
    model = load_model(folder, ModelConfig(path=str(folder)))
    assert [layer.mlp.drop.p for layer in model.model.layers] == [0.0, 0.0]


def build_sequences(seed: int) -> list[TrainSequence]:
    drawn = np.random.default_rng(seed)
    return [TrainSequence(token_ids=drawn.integers(2, 14, 12), trained_from=4, weight=0.25) for _ in range(4)]


def test_training_logprobs_equal_reported_ones(tmp_path: Path) -> None:
    """With GPT-2's dropout in the config: the loss sees the logprobs computed before the step."""
    engine = build_engine(build_folder(GPT2, tmp_path / "model"))
    expected = np.concatenate(engine.compute_logprobs([build_sequences(0)])[0])
    seen: list[Tensor] = []

    def keep(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        seen.append(logprobs.detach())
        return -(logprobs * batch.weights).sum(), {}

    engine.train([build_sequences(0)], keep, 1e-2)
    assert np.array_equal(seen[0].numpy(), expected)


def train_by_chance(engine: PolicyEngine, steps: range) -> list[float]:
    """Return losses scaled by numbers from every random generator of a process."""

    def scaled(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        chance = float(torch.rand(1)) + np.random.rand() + random.random() + random.gauss() + np.random.randn()
        return -(logprobs * batch.weights).sum() * chance, {}

    return [engine.train([build_sequences(step)], scaled, 1e-2)["loss"] for step in steps]


def test_resumed_process_continues_random_numbers(tmp_path: Path) -> None:
    folder = build_folder(GPT2, tmp_path / "model")
    engine = build_engine(folder)
    train_by_chance(engine, range(3))
    (tmp_path / "saved").mkdir()
    engine.save(tmp_path / "saved")
    undisturbed = train_by_chance(engine, range(3, 6))
    resumed = build_engine(folder)
    train_by_chance(resumed, range(2))
    resumed.load(tmp_path / "saved")
    assert train_by_chance(resumed, range(3, 6)) == undisturbed


def test_checkpoint_without_random_state_loads(tmp_path: Path) -> None:
    folder = build_folder(GPT2, tmp_path / "model")
    (tmp_path / "saved").mkdir()
    build_engine(folder).save(tmp_path / "saved")
    (tmp_path / "saved" / "rng-0.pt").unlink()
    engine, before = build_engine(folder), torch.get_rng_state()
    engine.load(tmp_path / "saved")
    assert torch.equal(torch.get_rng_state(), before)
