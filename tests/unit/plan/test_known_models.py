import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.model import ModelConfig
from slurm_rl.launch.runs.model_shape import find_shape, find_shape_at, sees_images
from slurm_rl.plan import known_models
from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.memory import ModelShape
from tests.unit.cli.test_start_checks import write_header


def test_known_shapes_have_published_parameters() -> None:
    text = Path(known_models.__file__).with_suffix(".csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        shape = find_known(f"{row['owner']}/{row['names'].split()[0]}")
        assert shape is not None
        billions = row["billions"]  # cards and papers round to three digits or more
        precision = 2e-3 if len(billions.replace(".", "")) > 3 and "." in billions else 1.5e-2
        assert shape.num_parameters / 1e9 == pytest.approx(float(billions), rel=precision), row["names"]


def test_known_models_have_class_of_transformers() -> None:
    """Except one reward model with a class of its own."""
    import transformers

    found = {shape.architecture for shape in known_models.load_known().values()} - {""}
    assert len(found) > 20 and found <= set(dir(transformers))
    for name in ("Qwen/Qwen3-VL-2B-Instruct", "google/gemma-3-4b-it", "meta-llama/Llama-4-Scout-17B-16E"):
        shape = find_known(name)
        assert (
            shape is not None
            and bool(shape.vision_parameters)
            and shape.architecture.endswith("ForConditionalGeneration")
        )


def test_find_shape_uses_known_models_by_name() -> None:
    shape = find_shape(ModelConfig(path="Qwen/Qwen2.5-VL-3B-Instruct"))
    assert shape == find_known("qwen/qwen2.5-vl-3b-instruct") != None  # noqa: E711
    assert sees_images(ModelConfig(path="Qwen/Qwen2.5-VL-3B-Instruct")) is True
    assert sees_images(ModelConfig(path="Qwen/Qwen3-8B")) is False
    assert (find_shape(ModelConfig(path="some/body")), sees_images(ModelConfig(path="some/body"))) == (None, None)


def test_active_parameters_match_model_cards() -> None:
    """The cards say 3.3B and 22B; papers 12.9B (arXiv:2401.04088), 37B (2412.19437) and 32B (2508.06471)."""
    published = {
        "Qwen/Qwen3-30B-A3B": 3.3,
        "Qwen/Qwen3-235B-A22B": 22,
        "mistralai/Mixtral-8x7B-Instruct-v0.1": 12.9,
        "deepseek-ai/DeepSeek-V3": 37,
        "zai-org/GLM-4.5": 32,
    }
    for name, billions in published.items():
        shape = find_known(name)
        assert shape is not None and shape.active_parameters / 1e9 == pytest.approx(billions, rel=0.06)


def test_cache_and_flops_follow_windows_and_latents() -> None:
    shape = ModelShape(4, 8, 16, 32, num_heads=4, num_kv_heads=2, head_dim=4, is_tied=True)
    assert shape.cached_values(100) == 4 * 2 * 2 * 4 * 100 and shape.cached_values(100, 4) == 4 * 2 * 4 * 100
    windows = replace(shape, sliding_window=10, num_sliding_layers=3)
    assert windows.cached_values(100) == (100 + 3 * 10) * 2 * 2 * 4
    latents = replace(shape, kv_lora_rank=6, rope_head_dim=2)
    assert latents.cached_values(100, 4) == 4 * (6 + 2) * 100
    # Two products with 4 heads of 4 over half of the sequence; the tied table is used as the head only.
    assert shape.forward_flops(100) == 2 * shape.num_parameters + 4 * (2 * 2 * 4 * 4 * 50)
    # Token t attends to min(t, 10) tokens: 9.5 on average with an error of half a token.
    assert windows.forward_flops(100) == 2 * shape.num_parameters + (2 * 2 * 4 * 4) * (50 + 3 * 9.5)


def test_find_shape_counts_tensors_of_folder(tmp_path: Path) -> None:
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9, "mamba_d_state": 2}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "intermediate_size": 8, "tie_word_embeddings": True}))
    path = str(tmp_path)
    assert find_shape_at(path) is None, "state spaces are not in the formula"
    table, layer = {"model.embed_tokens.weight": [9, 4]}, {"model.layers.0.mixer.weight": [8, 4]}
    ignored = {"lm_head.weight": [9, 4], "model.layers.1.mlp.weight": [8, 4], "mtp.fc.weight": [4, 4]}
    write_header(tmp_path / "model-1.safetensors", table | layer | ignored)
    shape = find_shape_at(path)
    assert shape is not None and shape.num_parameters == 9 * 4 + 8 * 4
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_shape_at(path) is None, "a shard is missing"


def test_plan_refuses_model_of_unknown_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    words = ["plan", "+exp=demo", "model=hf", "+cluster=nvidia_h100"]
    for path, action in {"some/body": "prepare model some/body", str(tmp_path): "cluster.gpu_mem_gb=null"}.items():
        assert main([*words, f"model.path={path}"]) == 2
        assert action in capsys.readouterr().err
    assert main([*words, "model.path=Qwen/Qwen3-8B", "reference.path=some/body", "algorithm.kl.coef=0.1"]) == 2
    assert "the size of reference.path must be known" in capsys.readouterr().err
    for planned in ([f"model.path={tmp_path}", "cluster.gpu_mem_gb=null"], ["model.path=/only/on/nodes"]):
        main([*words, *planned])  # other checks may refuse
        said = capsys.readouterr()
        assert "not estimated" in said.out and "must be known" not in said.err
