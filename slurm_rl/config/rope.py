"""Scale the rotary position embeddings (RoPE) of a model's config by `model.rope_scaling`."""

from collections.abc import Mapping
from typing import Any

from slurm_rl.config.model import RopeScalingConfig
from slurm_rl.errors import ConfigError

_OF_FAMILY = ("rope_theta", "partial_rotary_factor")
"""Parameters of the model that no kind of scaling replaces."""


def extend_rope(scaling: RopeScalingConfig, text: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the fields of a language model's config that change.

    Args:
        text: config.json, or its text_config.
        source: the model, for errors.

    Raises:
        ConfigError: the positions of this family cannot be scaled.
    """
    own, limit = read_rope(text), text.get("max_position_embeddings")
    is_yarn = own.get("rope_type") == scaling.rope_type == "yarn"  # DeepSeek's mscale, gpt-oss' truncate
    kept = own if is_yarn else {key: own[key] for key in _OF_FAMILY if key in own}
    original = scaling.original_max_position_embeddings or own.get("original_max_position_embeddings") or limit
    reason = None
    if not own or original is None:
        reason = "has no rotary positions in its config.json (rope_parameters, rope_theta, max_position_embeddings)"
    elif any(isinstance(value, Mapping) for value in own.values()):
        reason = "has other rotary positions for each kind of layer"
    elif "mrope_section" in own:
        # vLLM 0.32 corrects YaRN for four times the original context there (MRotaryEmbedding).
        reason = "has positions with several axes, which vLLM scales in another way than transformers"
    elif scaling.rope_type == "longrope" and not (scaling.long_factor or own.get("long_factor")):
        reason = "has no long_factor, and model.rope_scaling.long_factor is null"
    if reason is not None:
        seen = f"{scaling.rope_type} for {source}, which {reason}"
        action = "choose another model or rope_type, or set model.rope_scaling=null"
        raise ConfigError("model.rope_scaling must fit the model's positions", seen=seen, action=action)
    assert original is not None
    length = int(scaling.factor * original)
    scaled = {**kept, "rope_type": scaling.rope_type, "factor": length / original}
    if scaling.rope_type == "longrope":
        # One list for all lengths: transformers chooses by the longest sequence of a batch, vLLM by max_model_len.
        scaled["long_factor"] = scaled["short_factor"] = list(scaling.long_factor or own["long_factor"])
    yarn = {
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "attention_factor": scaling.attention_factor,
    }
    scaled |= {name: value for name, value in yarn.items() if value is not None}
    if scaling.rope_type == "linear":
        # vLLM multiplies max_position_embeddings by the factor, and transformers does not read it.
        return {"rope_parameters": scaled, "max_position_embeddings": original}
    scaled["original_max_position_embeddings"] = original
    changed = {"rope_parameters": scaled, "max_position_embeddings": length}
    if "original_max_position_embeddings" in text:  # Phi-3, where it has precedence
        changed["original_max_position_embeddings"] = original
    return changed


def read_rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters of a config.json, or of its text_config, under transformers 5's names.

    >>> read_rope({"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}})
    {'rope_theta': 1000000.0, 'rope_type': 'yarn', 'factor': 4.0}
    """
    names = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
    outside = {name: text[name] for name in names if text.get(name) is not None}
    inside = {**(text.get("rope_parameters") or text.get("rope_scaling") or {})}
    if "type" in inside:
        inside = {"rope_type": inside.pop("type"), **inside}
    return {**outside, **inside} if inside or "rope_theta" in outside else {}


def read_context(text: Mapping[str, Any]) -> int | None:
    """Return the longest sequence, in tokens, for which transformers and vLLM compute the same.

    >>> read_context({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "linear", "factor": 4.0}})
    256
    """
    rope, limit = read_rope(text), text.get("max_position_embeddings") or text.get("n_positions")
    if limit is not None and rope.get("rope_type") == "linear":
        return int(limit * rope.get("factor", 1))
    if limit is not None and rope.get("rope_type") == "longrope" and rope.get("short_factor") != rope["long_factor"]:
        return min(limit, rope.get("original_max_position_embeddings") or limit)
    return limit
