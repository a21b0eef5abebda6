"""A small random Qwen3 with one token per character, as a Hugging Face folder.

It has no unknown token on purpose: text outside the vocabulary raises instead of training on noise.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from slurm_rl.config.model import TinyModelConfig, TinyVLConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.checkpoint.store import written_beside

PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"


def build_tiny_model(config: TinyModelConfig, seed: int, folder: Path) -> None:
    """Write weights, config and tokenizer to `folder`, whole or not at all; equal seeds give equal bytes."""
    tokenizer = build_character_tokenizer(config)
    model = draw_weights(lambda: Qwen3ForCausalLM(Qwen3Config(**shape_of(config, tokenizer))), tokenizer, seed)
    with written_beside(folder) as beside:
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)


def draw_weights(
    build: Callable[[], PreTrainedModel], tokenizer: PreTrainedTokenizerFast, seed: int
) -> PreTrainedModel:
    logging.disable_progress_bar()  # a log file is no terminal
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model.to(torch.float32)


def build_character_tokenizer(config: TinyModelConfig) -> PreTrainedTokenizerFast:
    """<pad> is 0, <eos> is 1, then the characters in their order."""
    repeated = sorted(c for c, count in Counter(config.characters).items() if count > 1)
    if repeated:
        raise ConfigError(
            "model.tiny.characters must name each character once",
            seen=config.characters,
            action=f"remove the repeated {' '.join(map(repr, repeated))}",
        )
    vocabulary = {token: i for i, token in enumerate([PAD_TOKEN, EOS_TOKEN, *config.characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        model_max_length=config.context_length,
        clean_up_tokenization_spaces=False,
        chat_template=config.chat_template,
    )


def shape_of(config: TinyModelConfig | TinyVLConfig, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": 3 * config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.hidden_size // config.num_heads,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
