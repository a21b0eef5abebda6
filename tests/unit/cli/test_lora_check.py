import json
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.model_checks import check_lora_targets, read_linear_names
from slurm_rl.plan.memory import parse_shape

QWEN25_7B = {
    "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064,
    "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip


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


def model(path: Path, *targets: str) -> ModelConfig:
    return ModelConfig(path=str(path), lora=LoraConfig(target_modules=targets))


def test_adaptable_matrices_are_those_in_blocks(folder: Path) -> None:
    assert read_linear_names(folder) == {"wqkv", "up"}
    check_lora_targets(model(folder, "wqkv", "up"))


@pytest.mark.parametrize("target", ["q_proj", "norm", "lm_head", "embed"])
def test_other_matrices_are_refused_with_adaptable_ones(folder: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=rf"got {target}\. Next: choose from up, wqkv, or all-linear"):
        check_lora_targets(model(folder, "up", target))


def test_remote_model_is_left_to_node(tmp_path: Path) -> None:
    check_lora_targets(model(tmp_path / "hub-name", "anything"))


def test_check_lora_targets_refuses_matrices_of_fused_experts(tmp_path: Path) -> None:
    expert = {f"model.layers.0.mlp.experts.{i}.gate_proj.weight": [8, 4] for i in range(2)}
    write_header(tmp_path / "model.safetensors", {"model.layers.0.self_attn.q_proj.weight": [4, 4], **expert})
    with pytest.raises(ConfigError, match=r"got gate_proj\. Next: choose from q_proj, or all-linear"):
        check_lora_targets(model(tmp_path, "gate_proj"))


def test_check_lora_targets_refuses_model_of_transposed_layers(tmp_path: Path) -> None:
    layers = {"h.0.attn.c_attn": [4, 12], "h.0.attn.c_proj": [4, 4], "h.0.mlp.c_fc": [4, 16], "h.0.mlp.c_proj": [16, 4]}
    biases = {f"{name}.bias": shape[1:] for name, shape in layers.items()}
    write_header(tmp_path / "model.safetensors", {f"{name}.weight": s for name, s in layers.items()} | biases)
    lora = ModelConfig(path=str(tmp_path), lora=LoraConfig(target_modules="all-linear"))
    with pytest.raises(ConfigError, match=r"needs linear layers .*Next: train all weights with model\.lora=null"):
        check_lora_targets(lora)


def test_adapter_parameters_of_mixture_exclude_experts() -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10}
    dense = parse_shape({**config, "intermediate_size": 128})
    mixture = parse_shape({**config, "intermediate_size": 128, "num_experts": 8})
    assert dense is not None and mixture is not None
    assert dense.adapter_parameters(4) - mixture.adapter_parameters(4) == 2 * 4 * 3 * (64 + 128)


def test_start_checks_include_lora(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(QWEN25_7B))
    words = ["+exp=demo", "model=hf", f"model.path={folder}", "+lora=attention"]
    with pytest.raises(ConfigError, match=r"got k_proj, o_proj, .*choose from up, wqkv"):
        check_inputs(load_config(words), print)
