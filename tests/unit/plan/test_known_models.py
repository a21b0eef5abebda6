"""Shapes of known_models.csv against published parameter counts, in billions."""

import pytest

from slurm_rl.config.model import ModelConfig
from slurm_rl.launch.runs.model_shape import find_shape, sees_images
from slurm_rl.plan.known_models import find_known, load_known

# From model cards and papers.
PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": 0.494,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.544,
    "Qwen/Qwen2.5-3B": 3.086,
    "Qwen/Qwen2.5-7B-Instruct": 7.616,
    "Qwen/Qwen2.5-14B": 14.77,
    "Qwen/Qwen2.5-32B": 32.76,
    "Qwen/Qwen2.5-72B-Instruct": 72.71,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3.755,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8.292,
    "Qwen/Qwen2.5-VL-32B-Instruct": 33.45,
    "Qwen/Qwen2.5-VL-72B-Instruct": 73.41,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-1.7B": 1.721,
    "Qwen/Qwen3-4B": 4.022,
    "Qwen/Qwen3-8B": 8.191,
    "Qwen/Qwen3-14B": 14.77,
    "Qwen/Qwen3-32B": 32.76,
    "Qwen/Qwen3-30B-A3B": 30.53,
    "Qwen/Qwen3-235B-A22B": 235.1,
    "meta-llama/Llama-3.2-1B": 1.236,
    "meta-llama/Llama-3.2-3B": 3.213,
    "meta-llama/Meta-Llama-3-8B": 8.030,
    "meta-llama/Llama-3.3-70B-Instruct": 70.55,
    "OpenRLHF/Llama-3-8b-sft-mixture": 8.030,
    "mistralai/Mistral-7B-v0.1": 7.242,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.248,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46.70,
    "google/gemma-2-2b": 2.614,
    "google/gemma-2-9b-it": 9.242,
    "google/gemma-2-27b": 27.23,
    "google/gemma-3-1b-it": 1.000,
    "google/gemma-3-4b-it": 4.300,
    "google/gemma-3-12b-it": 12.19,
    "google/gemma-3-27b-it": 27.43,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.777,
    "microsoft/phi-4": 14.66,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 0.1345,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 0.3618,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.711,
    "HuggingFaceTB/SmolLM3-3B": 3.075,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_shape_has_the_published_parameters(name: str) -> None:
    shape = find_known(name)
    assert shape is not None
    assert shape.num_parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=2e-3)


def test_every_known_shape_has_a_published_count() -> None:
    """Compare by weights, since variants with another context share them."""

    def weights(name: str) -> tuple[int, ...]:
        shape = load_known()[name.lower()]
        return shape.num_layers, shape.hidden_size, shape.num_parameters

    assert {weights(name) for name in load_known()} == {weights(name) for name in PUBLISHED}


def test_find_shape_uses_known_models_by_name() -> None:
    shape = find_shape(ModelConfig(path="Qwen/Qwen2.5-VL-3B-Instruct"))
    assert shape == find_known("qwen/qwen2.5-vl-3b-instruct") != None  # noqa: E711
    assert sees_images(ModelConfig(path="Qwen/Qwen2.5-VL-3B-Instruct")) is True
    assert sees_images(ModelConfig(path="Qwen/Qwen3-8B")) is False
    assert (find_shape(ModelConfig(path="some/body")), sees_images(ModelConfig(path="some/body"))) == (None, None)
