"""Targets of adapters are checked against the weights' headers before anything is queued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_rl.config.model import LoraConfig, ModelConfig, TinyModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.runs.model_checks import check_lora_targets, read_linear_names


def write_header(path: Path, shapes: dict[str, list[int]]) -> None:
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_header(
        tmp_path / "model-1.safetensors", {"model.layers.0.attn.wqkv.weight": [4, 4], "lm_head.weight": [9, 4]}
    )
    norms = {"model.layers.1.norm.weight": [4], "model.layers.1.mlp.up.weight": [8, 4], "model.embed.weight": [9, 4]}
    write_header(tmp_path / "model-2.safetensors", norms)
    return tmp_path


def model(path: Path | None, *targets: str) -> ModelConfig:
    tiny = TinyModelConfig() if path is None else None
    return ModelConfig(path=path and str(path), tiny=tiny, lora=LoraConfig(target_modules=targets))


def test_matrices_inside_blocks_are_what_can_be_adapted(folder: Path) -> None:
    assert read_linear_names(folder) == {"wqkv", "up"}
    check_lora_targets(model(folder, "wqkv", "up"))


@pytest.mark.parametrize("target", ["q_proj", "norm", "lm_head", "embed"])
def test_others_are_refused_with_those_that_are(folder: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=rf"got {target}\. Next: choose from up, wqkv, or all-linear"):
        check_lora_targets(model(folder, "up", target))


def test_a_model_built_here_is_checked_too() -> None:
    check_lora_targets(model(None, "q_proj", "down_proj"))
    with pytest.raises(ConfigError, match=r"got wqkv\. Next: choose from down_proj"):
        check_lora_targets(model(None, "wqkv"))


def test_a_name_that_is_not_here_is_left_to_the_node(tmp_path: Path) -> None:
    check_lora_targets(model(tmp_path / "hub-name", "anything"))


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0{{{{{")
    with pytest.raises(ConfigError, match=r"whole; got .*model\.safetensors"):
        check_lora_targets(model(tmp_path, "q_proj"))
