"""Loading a model, and errors for unsuitable ones."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

from slurm_rl.config.model import ModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.load_model import load_model, load_tokenizer
from tests.tiny_models import build_tiny_model
from tests.train.conftest import SMALL


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def config(path: Path, **fields: object) -> ModelConfig:
    return ModelConfig(path=str(path), **fields)


def test_seed_decides_bytes_and_leaves_callers_randomness(tmp_path: Path, folder: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    build_tiny_model(SMALL, 0, tmp_path / "same")
    build_tiny_model(SMALL, 1, tmp_path / "other")
    assert torch.rand(1) == expected
    weights = [(p / "model.safetensors").read_bytes() for p in (folder, tmp_path / "same", tmp_path / "other")]
    assert weights[0] == weights[1] != weights[2]


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
