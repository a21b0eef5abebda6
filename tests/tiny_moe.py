"""A random Qwen3-MoE with the tokens of the tiny model, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.config.model import TinyModelConfig


def build_tiny_moe(config: TinyModelConfig, folder: Path) -> Path:
    """Write the model; two of its eight experts take each token.

    The experts' width is no multiple of 32, so vLLM's CPU kernel pads it.
    """
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from slurm_rl.models.tiny import build_character_tokenizer, draw_weights, shape_of

    tokenizer = build_character_tokenizer(config)
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    moe = Qwen3MoeConfig(**shape_of(config, tokenizer), **experts, decoder_sparse_step=1, mlp_only_layers=[])
    draw_weights(lambda: Qwen3MoeForCausalLM(moe), tokenizer, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
