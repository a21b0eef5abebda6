"""One rank of the policy engine: loading a model, steps, checkpoints, and random numbers."""

import json
import math
import random
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen3ForCausalLM,
)

from slurm_rl.algorithms.sequences import PackedBatch, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import CheckpointError, ConfigError, TrainingError
from slurm_rl.models.checkpoint.background import wait_for_files
from slurm_rl.models.load_model import load_model, load_tokenizer
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.workers.train_workers import PolicyWorker
from tests.tiny_models import TinyModel, build_character_tokenizer, build_tiny_model
from tests.train.conftest import SMALL

# With the default eps, Adam turns the rounding of a vanishing gradient into a step.
OPTIM = OptimConfig(lr=1e-2, weight_decay=0.1, max_grad_norm=0.5, eps=1e-6)
CPU = torch.device("cpu")


def build_engine(
    folder: Path, temperature: float = 1.0, policy: Mapping[str, object] | None = None, **fields: object
) -> PolicyEngine:
    config, policy_config = ModelConfig(path=str(folder), **fields), PolicyConfig(num_threads=1, **(policy or {}))
    return PolicyEngine(folder, config, policy_config, OPTIM, temperature=temperature)


def build_sequences(num: int, seed: int = 0) -> list[TrainSequence]:
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 14, num)
    return [
        TrainSequence(token_ids=random.integers(2, 14, n), trained_from=int(random.integers(1, n)), weight=1 / num)
        for n in lengths
    ]


def cross_entropy(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
    return -(logprobs * batch.weights).sum(), {"num_tokens": float(len(logprobs)), "entropy": float(entropy.sum())}


def state_of(engine: PolicyEngine) -> dict[str, Tensor]:
    return dict(engine.full_state())


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("split", [[12], [1] * 12, [5, 0, 7], [0, 12, 0]])
def test_loss_is_independent_of_micro_batches(folder: Path, split: list[int]) -> None:
    """Metrics and weights after two steps do not depend on the micro-batches."""
    sequences = build_sequences(12)
    results = []
    for cut in ([3, 4, 5], split):
        engine = build_engine(folder)
        ends = np.cumsum(cut).tolist()
        micro_batches = [sequences[end - n : end] for n, end in zip(cut, ends, strict=True)]
        metrics = [engine.train(micro_batches, cross_entropy, 1e-2) for _ in range(2)]
        results.append((metrics, state_of(engine)))
    (metrics, state), (other_metrics, other_state) = results
    assert metrics[1]["loss"] < metrics[0]["loss"]
    assert metrics[0]["num_tokens"] == sum(s.num_trained for s in sequences)
    for one, other in zip(metrics, other_metrics, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, other_state[name], rtol=0, atol=2e-5)


def test_micro_batch_without_trained_tokens_adds_nothing(folder: Path) -> None:
    sequences = build_sequences(3)
    untrained = [replace(s, trained_from=len(s.token_ids)) for s in build_sequences(2, seed=1)]
    engines = build_engine(folder), build_engine(folder)
    with_it = engines[0].train([sequences, untrained], cross_entropy, 1e-2)
    without = engines[1].train([sequences], cross_entropy, 1e-2)
    assert with_it == without
    assert [len(values) for values in engines[0].compute_logprobs([untrained])[0]] == [0, 0]


def test_step_without_tokens_changes_nothing(folder: Path) -> None:
    engine = build_engine(folder)
    engine.backend.reset_optimizer(OPTIM.model_copy(update={"weight_decay": 0.0}))
    before = state_of(engine)
    assert engine.train([[]], cross_entropy, 1e-2) == {"loss": 0.0, "grad_norm": 0.0}
    assert_same(before, state_of(engine))
    assert engine.compute_logprobs([[]]) == [[]]


def test_warmup_uses_temperature_1(folder: Path) -> None:
    """With the engine's sampling temperature of 0.5, a warm-up would learn a flatter distribution."""
    sequences, found = build_sequences(4), []
    for temperature in (0.5, 1.0):
        worker = PolicyWorker.__new__(PolicyWorker)
        worker.engine = build_engine(folder, temperature)
        found.append((worker.train_answers([sequences], 1e-2), state_of(worker.engine)))
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])


def test_gradient_checkpointing_changes_no_bit(folder: Path) -> None:
    plain, lean = build_engine(folder), build_engine(folder, gradient_checkpointing=True)
    for seed in range(3):
        batch = [build_sequences(8, seed)]
        assert plain.train(batch, cross_entropy, 1e-2) == lean.train(batch, cross_entropy, 1e-2)
    assert_same(state_of(plain), state_of(lean))


def train(engine: PolicyEngine, seeds: Sequence[int]) -> list[dict[str, float]]:
    return [engine.train([build_sequences(6, seed), build_sequences(3, seed)], cross_entropy, 1e-2) for seed in seeds]


@pytest.mark.parametrize(("steps", "background"), [(0, False), (3, False), (2, True)])
def test_resumed_run_equals_uninterrupted_one(folder: Path, tmp_path: Path, steps: int, background: bool) -> None:
    """Also from a checkpoint without optimizer moments, and from one that is written while training continues."""
    engine, undisturbed = build_engine(folder), build_engine(folder)
    for each in (engine, undisturbed):
        train(each, range(steps))
    files = engine.save(tmp_path, background=background)
    assert files == ([tmp_path / "rank-0.pt"] if background else [])
    uninterrupted = train(engine, range(3, 6))
    assert uninterrupted == train(undisturbed, range(3, 6))
    wait_for_files(files, 60, threading.Event())
    resumed = build_engine(folder)
    train(resumed, [9])  # its state before the load must not matter
    resumed.load(tmp_path)
    assert train(resumed, range(3, 6)) == uninterrupted
    assert_same(state_of(engine), state_of(resumed))


def test_checkpoint_of_other_model_or_none_is_refused(folder: Path, tmp_path: Path) -> None:
    build_tiny_model(replace(SMALL, hidden_size=64), 0, tmp_path / "other")
    (tmp_path / "saved").mkdir()
    build_engine(tmp_path / "other").save(tmp_path / "saved")
    engine = build_engine(folder)
    before = state_of(engine)
    with pytest.raises(CheckpointError, match=r"with the parameters it was saved with .*Next: resume with the config"):
        engine.load(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"layout\.json"):
        engine.load(tmp_path)
    assert_same(before, state_of(engine))


def nan_loss(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
    return logprobs.sum() * math.nan, {}


def nan_gradient(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
    return torch.sqrt(logprobs * 0).sum(), {}


@pytest.mark.parametrize(("loss_fn", "what"), [(nan_loss, "loss"), (nan_gradient, "gradient norm")])
def test_nonfinite_step_changes_nothing(folder: Path, loss_fn: object, what: str) -> None:
    engine = build_engine(folder)
    train(engine, [0])
    before = state_of(engine)
    with pytest.raises(TrainingError, match=f"the {what} must be finite; got nan"):
        engine.train([build_sequences(2)], loss_fn, 1e-2)
    assert_same(before, state_of(engine))


def test_reset_optimizer_equals_new_one(folder: Path, tmp_path: Path) -> None:
    """A fresh engine and a reset one with the same weights take the same steps."""
    engine = build_engine(folder)
    train(engine, range(3))
    engine.export(tmp_path / "export")
    engine.backend.reset_optimizer(OPTIM)
    assert train(engine, range(2)) == train(build_engine(tmp_path / "export"), range(2))


def test_full_state_is_state_dict_with_tied_names(folder: Path) -> None:
    engine = build_engine(folder)
    train(engine, [0])
    state = state_of(engine)
    assert_same(state, engine.module.state_dict())
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    before = {name: tensor.clone() for name, tensor in state.items()}
    train(engine, [1])
    assert_same(before, state)  # copies: later steps do not change them


def test_export_loads_as_any_model(folder: Path, tmp_path: Path) -> None:
    engine = build_engine(folder)
    train(engine, range(2))
    engine.export(tmp_path / "export")
    assert sorted(p.name for p in (tmp_path / "export").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert_same(state_of(engine), model.state_dict())
    assert model.config.use_cache
    assert not engine.module.config.use_cache
    assert (tmp_path / "export/model.safetensors").stat().st_size == (folder / "model.safetensors").stat().st_size


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def config(path: Path, **fields: object) -> ModelConfig:
    return ModelConfig(path=str(path), **fields)


def test_built_model_matches_request(folder: Path) -> None:
    model = load_model(folder, config(folder))
    assert isinstance(model, Qwen3ForCausalLM) and model.training and not model.config.use_cache
    assert (model.dtype, model.config._attn_implementation) == (torch.float32, "sdpa")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (1, 1)
    model = load_model(folder, config(folder, dtype="bfloat16", attention="eager", gradient_checkpointing=True))
    assert (model.dtype, model.config._attn_implementation) == (torch.bfloat16, "eager")
    assert model.is_gradient_checkpointing


def test_init_from_replaces_weights(folder: Path, tmp_path: Path) -> None:
    build_tiny_model(SMALL, 1, tmp_path / "other")
    (tmp_path / "weights").mkdir()
    shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "weights")  # config and tokenizer are not needed
    model = load_model(folder, config(folder, init_from=str(tmp_path / "weights")))
    expected = load_model(tmp_path / "other", config(tmp_path / "other")).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_weights_of_other_size_are_refused(folder: Path, tmp_path: Path) -> None:
    build_tiny_model(replace(SMALL, hidden_size=64), 0, tmp_path / "other")
    with pytest.raises(ConfigError, match=r"model\.init_from must.*of another shape: .*\[14, 64\] for \[14, 32\]"):
        load_model(folder, config(folder, init_from=str(tmp_path / "other")))


def test_weights_with_other_names_are_refused(folder: Path, copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["model.strange.weight"] = weights.pop("model.norm.weight")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 missing: model\.norm\.weight; 1 not of this model: model\.strange"):
        load_model(folder, config(folder, init_from=str(copy)))


def test_pickled_weights_are_not_read(folder: Path, copy: Path) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="safetensors"):
        load_model(folder, config(folder, init_from=str(copy)))


@pytest.mark.parametrize("token", ["pad_token", "eos_token"])
def test_tokenizer_without_needed_token_is_refused(copy: Path, token: str) -> None:
    path = copy / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings[token]
    path.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=f"must have a {token}.*Next: name one of its special tokens"):
        load_tokenizer(copy)


def test_folder_without_model_and_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path must be.*got .*Next: correct model\.path"):
        load_model(tmp_path, config(tmp_path))
    with pytest.raises(ConfigError, match=r"model\.path must hold a tokenizer"):
        load_tokenizer(tmp_path)


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


def draw_sequences(seed: int) -> list[TrainSequence]:
    drawn = np.random.default_rng(seed)
    return [TrainSequence(token_ids=drawn.integers(2, 14, 12), trained_from=4, weight=0.25) for _ in range(4)]


def test_training_logprobs_equal_reported_ones(tmp_path: Path) -> None:
    """With GPT-2's dropout in the config: the loss sees the logprobs computed before the step."""
    engine = build_engine(build_folder(GPT2, tmp_path / "model"))
    expected = np.concatenate(engine.compute_logprobs([draw_sequences(0)])[0])
    seen: list[Tensor] = []

    def keep(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        seen.append(logprobs.detach())
        return -(logprobs * batch.weights).sum(), {}

    engine.train([draw_sequences(0)], keep, 1e-2)
    assert np.array_equal(seen[0].numpy(), expected)


def train_by_chance(engine: PolicyEngine, steps: range) -> list[float]:
    """Return losses scaled by numbers from every random generator of a process."""

    def scaled(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
        chance = float(torch.rand(1)) + np.random.rand() + random.random() + random.gauss() + np.random.randn()
        return -(logprobs * batch.weights).sum() * chance, {}

    return [engine.train([draw_sequences(step)], scaled, 1e-2)["loss"] for step in steps]


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
