import json
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.model_checks import check_same_model
from tests.tiny_models import TinyModel
from tests.unit.cli.test_lora_check import QWEN25_7B, write_header

LLAMA3_70B = {
    "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672, "vocab_size": 128256,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip

SHAPES = {"model.embed_tokens.weight": [9, 4], "model.layers.0.mlp.up_proj.weight": [8, 4]}


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    (tmp_path / "model").mkdir()
    write_header(tmp_path / "model" / "model.safetensors", SHAPES)
    return ModelConfig(path=str(tmp_path / "model"))


def write_other(tmp_path: Path, **shapes: list[int]) -> str:
    (tmp_path / "other").mkdir()
    names = {name.replace("_UP_", "layers.0.mlp.up_proj"): shape for name, shape in shapes.items()}
    other = {f"model.{name}.weight": shape for name, shape in names.items()}
    write_header(tmp_path / "other" / "model.safetensors", SHAPES | other)
    return str(tmp_path / "other")


def test_same_model_passes_and_remote_model_is_left_to_node(model: ModelConfig, tmp_path: Path) -> None:
    check_same_model("model.init_from", model.path, model)
    check_same_model("model.init_from", write_other(tmp_path, score=[1, 4]), model)
    check_same_model("model.init_from", "org/name", model)
    check_same_model("model.init_from", None, model)


def test_weights_of_other_size_are_refused_with_both_shapes(model: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.init_from.*\[8, 4\].*up_proj\.weight \[6, 4\]"):
        check_same_model("model.init_from", write_other(tmp_path, _UP_=[6, 4]), model)


def test_model_from_config_is_compared_by_embedding(tmp_path: Path) -> None:
    folder = TinyModel(characters="abcd", hidden_size=8).write(tmp_path / "source")
    tiny = ModelConfig(from_config=str(folder))
    with pytest.raises(ConfigError, match=r"\[6, 8\].*embed_tokens\.weight \[9, 4\]"):
        check_same_model("critic.init_from", write_other(tmp_path), tiny)


def test_start_checks_include_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN25_7B))
    other = write_other(tmp_path)
    config = load_config(["+exp=demo", "model=hf", f"model.path={folder}", f"model.init_from={other}"])
    with pytest.raises(ConfigError, match=r"\[152064, 3584\].*\[9, 4\]") as caught:
        check_inputs(config, print)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("tree", "words", "numbers"),
    [
        (QWEN25_7B, ["rollout.tensor_parallel_size=8"], ["28 heads", "8 GPUs"]),
        (LLAMA3_70B, ["cluster.num_nodes=1"], ["GB >", "80.0 GB"]),
        (QWEN25_7B, ["rollout.max_off_policy_steps=-1"], ["max_off_policy_steps", "-1"]),
    ],
)
def test_weight_errors_exit_with_2(
    tree: dict[str, object], words: list[str], numbers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tree))
    words = [
        "+exp=demo",
        "+cluster=nvidia_h100",
        "model=hf",
        f"model.path={folder}",
        f"run_dir={tmp_path / 'run'}",
        *words,
    ]
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert all(number in said for number in numbers), said
