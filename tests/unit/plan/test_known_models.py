import csv
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.config.model import ModelConfig
from slurm_rl.launch.runs.model_shape import find_shape, sees_images
from slurm_rl.plan import known_models
from slurm_rl.plan.known_models import find_known
from slurm_rl.plan.memory import ModelShape


def test_known_shapes_have_published_parameters() -> None:
    text = Path(known_models.__file__).with_suffix(".csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        shape = find_known(f"{row['owner']}/{row['names'].split()[0]}")
        assert shape is not None
        billions = row["billions"]  # cards and papers round to three digits or more
        precision = 2e-3 if len(billions.replace(".", "")) > 3 and "." in billions else 1.5e-2
        assert shape.num_parameters / 1e9 == pytest.approx(float(billions), rel=precision), row["names"]


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
