"""Compare `parse_shape` with transformers' classes on the meta device, family by family."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from slurm_rl.plan.parse_shape import parse_shape

FAMILIES = [
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "llama",
    "llama4_text",
    "mistral",
    "mixtral",
    "gemma2",
    "gemma3_text",
    "deepseek_v3",
    "gpt_oss",
    "glm4_moe",
    "granitemoe",
    "phi",
    "phi3",
    "olmo3",
    "smollm3",
    "qwen2_5_vl",
    "qwen3_vl",
    "mistral3",
    "gpt_neox",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_parse_shape_counts_parameters_of_family(family: str) -> None:
    """Use the default config, which most families have from a released model."""
    config = CONFIG_MAPPING[family]()
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    model.tie_weights()
    shape = parse_shape(config.to_dict())
    sizes = [p.numel() for p in model.parameters()]
    assert shape is not None and shape.num_parameters == pytest.approx(sum(sizes), rel=5e-3)
    assert shape.largest_tensor == max(sizes)


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "jamba", "lfm2", "gemma4_text", "granitemoehybrid"])
def test_parse_shape_counts_unknown_parts_only_from_files(family: str) -> None:
    config = CONFIG_MAPPING[family]().to_dict()
    assert parse_shape(config) is None
    shape = parse_shape(config, counted=10**10)
    assert shape is not None and shape.num_parameters == 10**10
