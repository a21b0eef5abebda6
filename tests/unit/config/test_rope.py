"""Context extension: its keys, its rules, and the context that the plan checks."""

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.model import RopeScalingConfig
from slurm_rl.config.rope import extend_rope, read_context
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_shape import find_shape
from slurm_rl.plan.layout import check_context
from tests.tiny_models import SMALL

PLAIN = {"rope_theta": 1e4, "max_position_embeddings": 64}
TWO_KINDS = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["rope_type:dynamic"], "longest sequence of a batch.*Next: yarn"),
        (["rope_type:linear", "beta_fast:16"], "beta_fast is for rope_type=yarn; got rope_type=linear"),
        (["long_factor:[1,2]"], "long_factor is for rope_type=longrope; got rope_type=yarn"),
        (["factor:1"], "greater than 1"),
    ],
)
def test_rope_scaling_refuses_bad_keys(words: list[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        load_config(["+exp=demo", f"model.rope_scaling={{{','.join(['factor:4', *words])}}}"])


def test_rope_scaling_refuses_export_of_adapters_only() -> None:
    words = ["+lora=all_linear", "model.lora.export=adapter", "model.rope_scaling={factor:4}"]
    with pytest.raises(ConfigError, match=r"model\.lora\.export=merged"):
        load_config(["+exp=demo", *words])


@pytest.mark.parametrize(
    ("text", "keys", "reason"),
    [
        ({"max_position_embeddings": 64}, {}, "has no rotary positions"),
        ({"rope_parameters": TWO_KINDS, "max_position_embeddings": 64}, {}, "for each kind of layer"),
        ({**PLAIN, "rope_scaling": {"mrope_section": [2, 1, 1]}}, {}, "several axes"),
        (PLAIN, {"rope_type": "longrope"}, "has no long_factor"),
    ],
)
def test_rope_scaling_refuses_unfit_positions(text: dict[str, Any], keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.rope_scaling must fit.*{reason}"):
        extend_rope(RopeScalingConfig(factor=4, **keys), text, "mine")


@pytest.mark.parametrize(
    ("text", "keys", "context"),
    [
        (PLAIN, {}, 256),
        (PLAIN, {"rope_type": "linear"}, 256),
        (PLAIN, {"rope_type": "longrope", "long_factor": [1, 2]}, 256),
        (PLAIN, {"original_max_position_embeddings": 32}, 128),
        # A model that is extended already, with the same words or others.
        ({**PLAIN, **extend_rope(RopeScalingConfig(factor=4), PLAIN, "")}, {}, 256),
        ({**PLAIN, **extend_rope(RopeScalingConfig(factor=8), PLAIN, "")}, {"rope_type": "linear"}, 256),
        # Phi-3.
        (
            {
                "rope_theta": 1e4,
                "max_position_embeddings": 512,
                "original_max_position_embeddings": 64,
                "rope_scaling": {"type": "longrope", "short_factor": [1, 1], "long_factor": [2, 3]},
            },
            {"rope_type": "longrope"},
            256,
        ),
    ],
)
def test_extended_context_is_factor_times_original(text: dict[str, Any], keys: dict[str, Any], context: int) -> None:
    fields = extend_rope(RopeScalingConfig(factor=4, **keys), text, "")
    assert read_context({**text, **fields}) == context
    assert fields["rope_parameters"]["rope_theta"] == 1e4


def test_context_of_switching_longrope_is_the_original() -> None:
    """transformers and vLLM switch between its lists at different lengths."""
    lists = {"rope_type": "longrope", "short_factor": [1], "long_factor": [2], "original_max_position_embeddings": 64}
    assert read_context({"max_position_embeddings": 512, "rope_scaling": lists}) == 64


@pytest.mark.parametrize("task", ["grpo", "sft"])
def test_plan_checks_extended_context(task: str, tmp_path: Path) -> None:
    folder = SMALL.write(tmp_path / "model")
    experiment = {"grpo": "demo", "sft": "sft_tiny"}[task]
    length = {"grpo": "rollout.max_tokens=200", "sft": "supervised.max_tokens=200"}[task]
    words = [f"+exp={experiment}", "model=hf", f"model.path={folder}", length]
    config = load_config(words)
    with pytest.raises(ConfigError, match=r"> 64.*model\.rope_scaling"):
        check_context(config, find_shape(config.model))
    config = load_config([*words, "model.rope_scaling={factor:4}"])
    check_context(config, find_shape(config.model))


def test_find_shape_refuses_model_that_cannot_be_scaled(tmp_path: Path) -> None:
    folder = SMALL.write(tmp_path / "model")
    tree = json.loads((folder / "config.json").read_text()) | {"rope_parameters": TWO_KINDS}
    (folder / "config.json").write_text(json.dumps(tree))
    config = load_config(["+exp=demo", "model=hf", f"model.path={folder}", "model.rope_scaling={factor:4}"])
    with pytest.raises(ConfigError, match="for each kind of layer"):
        find_shape(config.model)


def test_known_model_is_extended_from_its_trained_context() -> None:
    scaling = "model.rope_scaling={factor:4,original_max_position_embeddings:32768}"
    shape = find_shape(load_config(["+exp=demo", "model=hf", "model.path=Qwen/Qwen3-8B", scaling]).model)
    assert shape is not None
    assert shape.context_length == 131072
