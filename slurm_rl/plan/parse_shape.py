"""Read the shape of a model from its config.json, without torch or transformers.

tests/unit/plan/test_parse_shape.py compares the number of parameters with transformers' classes, family by family.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slurm_rl.plan.memory import ModelShape

# Names in config.json, the usual one first.
_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "vocab_size": ("vocab_size",),
    "num_heads": ("num_attention_heads", "n_head"),
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k")
_NUM_SHARED = ("n_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_SHARED_SIZES = ("shared_expert_intermediate_size", "shared_intermediate_size")
_ATTENTION = ("full_attention", "attention", "sliding_attention", "chunked_attention")
# Keys of families with parts that the formula does not have, such as state spaces and embeddings of each layer.
_OTHER_PARTS = ("mamba", "ssm_", "conv_L_cache", "attn_layer_period", "hidden_size_per_layer_input", "altup_")
# Families that normalize queries and keys without a key for it.
_HEAD_NORMS = ("qwen3", "gemma3", "olmo2", "olmo3", "minimax_m2")
# MLPs of two matrices.
_UNGATED = ("gpt2", "gpt_bigcode", "gpt_neox", "phi", "starcoder2", "opt", "gptj", "codegen", "nemotron")


def parse_shape(config: Mapping[str, Any], counted: int | None = None) -> ModelShape | None:
    """Parse a Hugging Face config.json, or its text_config.

    Args:
        counted: number of parameters in the model's files, if known.

    Returns:
        None if sizes are missing, or for a model with parts of unknown kinds without `counted`.

    >>> parse_shape({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10,
    ...              "intermediate_size": 128}).num_parameters
    83520
    """
    from slurm_rl.config.rope import read_context

    text: Mapping[str, Any] = config.get("text_config") or config
    sizes: dict[str, Any] = {key: _first(text, *names) for key, names in _NAMES.items()}
    inner = _first(text, "intermediate_size", "n_inner", "moe_intermediate_size")
    inner = inner or (4 * sizes["hidden_size"] if "n_embd" in text else 0)
    if not all(sizes.values()) or not inner:
        return None
    heads, layers = sizes["num_heads"], sizes["num_layers"]
    hidden = sizes["hidden_size"]
    sizes |= _parse_experts(text, layers, inner) | _parse_windows(text, layers)
    shape = ModelShape(
        **sizes | _parse_attention(text, heads, hidden),
        is_tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", _ties_by_default(text)))),
        context_length=read_context(text),
        vision_parameters=_count_vision(config.get("vision_config") or {}, hidden),
        has_head_norm=_has_head_norm(text),
        expert_kept_values=6 if text.get("model_type") == "gpt_oss" else 4,  # its activation has two more steps
        mlp_matrices=2 if text.get("model_type") in _UNGATED else 3,
        architecture=next(iter(config.get("architectures") or ()), ""),
    )
    if counted is None:
        kinds = set(_list_layers(text, layers)) - {*_ATTENTION, "linear_attention"}
        others = [key for key in text if key.startswith(_OTHER_PARTS) and text[key]]
        is_known = not kinds and not others and bool(shape.linear_parameters or not shape.num_linear_layers)
        return shape if is_known else None
    return replace(shape, other_parameters=counted - shape.num_parameters)


def _has_head_norm(text: Mapping[str, Any]) -> bool:
    return bool(text.get("use_qk_norm")) or str(text.get("model_type")).startswith(_HEAD_NORMS)


def _ties_by_default(text: Mapping[str, Any]) -> bool:
    return str(text.get("model_type")).startswith(("gemma", "gpt2", "cohere"))


def _first(text: Mapping[str, Any], *names: str) -> int:
    """Return the first positive integer among these keys, else 0; of a list, its largest."""
    for name in names:
        value = text.get(name)
        value = max(value, default=0) if isinstance(value, list) else value
        if isinstance(value, int) and value > 0:
            return int(value)
    return 0


def _parse_experts(text: Mapping[str, Any], layers: int, inner: int) -> dict[str, int]:
    num_experts = _first(text, *_EXPERTS)
    if num_experts < 2:
        return {"intermediate_size": inner}
    size = _first(text, "moe_intermediate_size") or inner
    shared = _first(text, *_SHARED_SIZES) or _first(text, *_NUM_SHARED) * size
    is_llama4 = "interleave_moe_layer_step" in text
    return {
        "num_experts": num_experts,
        "experts_per_token": _first(text, *_PER_TOKEN) or 1,
        "expert_size": size,
        "shared_expert_size": size if is_llama4 else shared,
        "num_dense_layers": layers - sum(_has_experts(text, number) for number in range(layers)),
        "intermediate_size": _first(text, "intermediate_size_mlp") or inner,
    }


def _has_experts(text: Mapping[str, Any], layer: int) -> bool:
    if isinstance(text.get("mlp_layer_types"), list):
        return bool(text["mlp_layer_types"][layer] == "sparse")
    if isinstance(text.get("moe_layers"), list):
        return layer in text["moe_layers"]
    first = _first(text, "first_k_dense_replace", "moe_layer_start_index")
    step = _first(text, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "moe_layer_freq") or 1
    if layer < first or layer in (text.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % step == 0 or step == 1


def _parse_attention(text: Mapping[str, Any], heads: int, hidden: int) -> dict[str, Any]:
    kinds = {"num_kv_heads": _first(text, "num_key_value_heads") or heads}
    latent = _first(text, "kv_lora_rank")
    if latent:
        rope = _first(text, "qk_rope_head_dim")
        return kinds | {
            "head_dim": _first(text, "qk_nope_head_dim") + rope,
            "q_lora_rank": _first(text, "q_lora_rank"),
            "kv_lora_rank": latent,
            "rope_head_dim": rope,
            "value_head_dim": _first(text, "v_head_dim"),
        }
    is_gated = "linear_num_value_heads" in text and text.get("attn_output_gate", True)
    return kinds | {"head_dim": _first(text, "head_dim") or hidden // heads, "has_query_gate": bool(is_gated)}


def _parse_windows(text: Mapping[str, Any], layers: int) -> dict[str, int]:
    """Return the layers with a window, and those of linear attention with their sizes."""
    kinds = _list_layers(text, layers)
    found = {}
    if sliding := sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds):
        window = _first(text, "sliding_window", "attention_chunk_size", "local_attention")
        found = {"sliding_window": window, "num_sliding_layers": sliding if window else 0}
    if linear := kinds.count("linear_attention"):
        keys = _first(text, "linear_num_key_heads") * _first(text, "linear_key_head_dim")
        heads, width = _first(text, "linear_num_value_heads"), _first(text, "linear_value_head_dim")
        values, hidden, kernel = heads * width, _first(text, "hidden_size"), _first(text, "linear_conv_kernel_dim")
        mixed = 2 * keys + values
        found |= {
            "num_linear_layers": linear,
            "linear_parameters": hidden * (mixed + 2 * values + 2 * heads) + mixed * kernel,
            "linear_state": values * _first(text, "linear_key_head_dim") + mixed * kernel,
        }
    return found


def _list_layers(text: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of each layer; older configs have a pattern in place of a list."""
    kinds = text.get("layer_types") or text.get("layers_block_type") or text.get("hybrid_override_pattern")
    if isinstance(kinds, list):
        return [str(kind) for kind in kinds]
    if kinds:
        return [str(kinds)]
    family = str(text.get("model_type"))
    if "linear_num_value_heads" in text:
        step, other = _first(text, "full_attention_interval") or 4, "linear_attention"
    elif family.startswith("llama4"):
        step, other = _first(text, "no_rope_layer_interval") or 4, "chunked_attention"
    elif not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return ["full_attention"] * layers
    elif family.startswith("gemma3"):
        step, other = _first(text, "sliding_window_pattern", "_sliding_window_pattern") or 6, "sliding_attention"
    elif family in ("gemma2", "gpt_oss"):
        step, other = 2, "sliding_attention"
    elif family in ("olmo3", "cohere2", "exaone4"):
        step, other = _first(text, "sliding_window_pattern") or 4, "sliding_attention"
    else:
        return ["sliding_attention"] * layers
    return ["full_attention" if (number + 1) % step == 0 else other for number in range(layers)]


def _count_vision(vision: Mapping[str, Any], hidden: int) -> int:
    """Return the parameters of a vision tower and its projector, within a few percent; 0 without a tower."""
    layers, width = _first(vision, "depth", "num_hidden_layers"), _first(vision, "embed_dim", "hidden_size")
    if not layers or not width:
        return 0
    inner = _first(vision, "intermediate_size") or int(width * vision.get("mlp_ratio", 4))
    family = str(vision.get("model_type"))
    matrices = 3 if "qwen2_5" in family or family == "pixtral" or (not family and "out_hidden_size" in vision) else 2
    blocks = layers * (4 * width**2 + matrices * width * inner)
    merge = _first(vision, "spatial_merge_size")
    if not merge:
        return blocks + width * hidden
    merged = width * merge**2
    mergers = 1 + len(vision.get("deepstack_visual_indexes") or ())
    return blocks + mergers * merged * (merged + hidden)
