"""Random mixture-of-experts models with the tokens of the toy model, as Hugging Face folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tiny_models import TinyModel

_EXPERTS = {"num_experts_per_tok": 2}


def _qwen3_moe(shape: dict[str, Any]) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    # The experts' width is no multiple of 32, so vLLM's CPU kernel pads it.
    experts = {"num_experts": 8, "moe_intermediate_size": 48, "norm_topk_prob": True}
    config = Qwen3MoeConfig(**shape, **_EXPERTS, **experts, decoder_sparse_step=1, mlp_only_layers=[])
    return lambda: Qwen3MoeForCausalLM(config)


def _mixtral(shape: dict[str, Any]) -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**{**shape, "intermediate_size": 48}, **_EXPERTS, num_local_experts=8)
    return lambda: MixtralForCausalLM(config)


def _gpt_oss(shape: dict[str, Any]) -> Any:
    from transformers import GptOssConfig, GptOssForCausalLM

    shape = {**shape, "intermediate_size": 64, "head_dim": 32}
    config = GptOssConfig(**shape, **_EXPERTS, num_local_experts=8, sliding_window=16)
    return lambda: GptOssForCausalLM(config)


def _deepseek_v3(shape: dict[str, Any]) -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    experts = {"n_routed_experts": 8, "moe_intermediate_size": 48, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
    # vLLM's CPU kernel for latent attention exists for 512 + 64 columns only.
    latent = {"kv_lora_rank": 512, "q_lora_rank": 24, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}
    own = {"first_k_dense_replace": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    heads = {"head_dim": 64, "num_key_value_heads": shape["num_attention_heads"], "tie_word_embeddings": False}
    config = DeepseekV3Config(**{**shape, **heads}, **_EXPERTS, **experts, **latent, **own)
    return lambda: DeepseekV3ForCausalLM(config)


def _glm4_moe(shape: dict[str, Any]) -> Any:
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    experts = {"n_routed_experts": 8, "moe_intermediate_size": 48, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    config = Glm4MoeConfig(**shape, **_EXPERTS, **experts, first_k_dense_replace=1)
    return lambda: Glm4MoeForCausalLM(config)


def _granitemoe(shape: dict[str, Any]) -> Any:
    from transformers import GraniteMoeConfig, GraniteMoeForCausalLM

    config = GraniteMoeConfig(**{**shape, "intermediate_size": 64}, **_EXPERTS, num_local_experts=8)
    return lambda: GraniteMoeForCausalLM(config)


FAMILIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
    "glm4_moe": _glm4_moe,
    "granitemoe": _granitemoe,
}


def build_tiny_moe(config: TinyModel, folder: Path, family: str = "qwen3_moe") -> Path:
    """Write the model; two of its eight experts take each token."""
    from tests.tiny_models import build_character_tokenizer, draw_weights, shape_of

    tokenizer = build_character_tokenizer(config)
    build = FAMILIES[family](shape_of(config, tokenizer))
    draw_weights(build, tokenizer, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
