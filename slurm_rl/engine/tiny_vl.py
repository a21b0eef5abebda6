"""A small random Qwen2.5-VL or Qwen3-VL with one token a byte, as a Hugging Face folder.

    <|im_start|>user\\n<|vision_start|><|image_pad|><|vision_end|>What is it?<|im_end|>\\n<|im_start|>assistant\\n

is what its chat template makes of one image and one text part. Any text can be written: there are 256 byte tokens
beside the special ones, which stand where the real models have theirs: first the end of text, then the rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.utils import logging

from slurm_rl.checkpoints.folders import written_beside
from slurm_rl.config.model import TinyVLConfig

PAD_TOKEN, EOS_TOKEN, IMAGE_TOKEN, VIDEO_TOKEN = "<|endoftext|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>"
_VISION_START, _VISION_END = "<|vision_start|>", "<|vision_end|>"
_SPECIAL = (PAD_TOKEN, "<|im_start|>", EOS_TOKEN, _VISION_START, _VISION_END, IMAGE_TOKEN, VIDEO_TOKEN)
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}" + _VISION_START + IMAGE_TOKEN + _VISION_END + "{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MIN_PIXELS, _MAX_PIXELS = 56 * 56, 28 * 28 * 64


def build_tiny_vl(config: TinyVLConfig, seed: int, folder: Path) -> None:
    """Write weights, config, tokenizer and image processor to `folder`; equal seeds give equal bytes."""
    logging.disable_progress_bar()  # a log file is no terminal
    tokenizer = build_byte_tokenizer(config.context_length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _FAMILIES[config.family](config, tokenizer)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    vision = model.config.vision_config
    preprocessor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": {"qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}[config.family],
        "size": {"shortest_edge": _MIN_PIXELS, "longest_edge": _MAX_PIXELS},
        "patch_size": vision.patch_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "merge_size": vision.spatial_merge_size,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    with written_beside(folder) as beside:
        model.to(torch.float32).save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        (beside / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n", encoding="utf-8")


def build_byte_tokenizer(context_length: int) -> PreTrainedTokenizerFast:
    """The special tokens from 0, then one token for each of the 256 bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*_SPECIAL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )


def _build_qwen2_5_vl(config: TinyVLConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=_text_config(config, tokenizer, interleaved=False),
            vision_config=_vision_config(config)
            | {"patch_size": 14, "window_size": 112, "fullatt_block_indexes": [config.vision_num_layers - 1]},
            vision_token_id=tokenizer.convert_tokens_to_ids(VIDEO_TOKEN),
            **_token_ids(tokenizer),
        )
    )


def _build_qwen3_vl(config: TinyVLConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    vision = {
        "patch_size": 16,
        "num_position_embeddings": 64,
        # vLLM adds each of them to one of the first blocks of the language model.
        "deepstack_visual_indexes": list(range(min(config.vision_num_layers, config.num_layers))),
    }
    return Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config=_text_config(config, tokenizer, interleaved=True),
            vision_config=_vision_config(config) | vision,
            **_token_ids(tokenizer),
        )
    )


_FAMILIES = {"qwen2_5_vl": _build_qwen2_5_vl, "qwen3_vl": _build_qwen3_vl}


def _text_config(config: TinyVLConfig, tokenizer: PreTrainedTokenizerFast, *, interleaved: bool) -> dict[str, Any]:
    head_dim = config.hidden_size // config.num_heads
    # Time, height and width share the rotary pairs of a head, as 16 : 24 : 24 in the real models.
    quarter = head_dim // 8
    section = [head_dim // 2 - 2 * (quarter + quarter // 2), quarter + quarter // 2, quarter + quarter // 2]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": 3 * config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": config.context_length,
        "rope_parameters": rope | ({"mrope_interleaved": True} if interleaved else {}),
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }


def _vision_config(config: TinyVLConfig) -> dict[str, Any]:
    return {
        "depth": config.vision_num_layers,
        "hidden_size": config.vision_hidden_size,
        "num_heads": config.num_heads,
        "intermediate_size": 2 * config.vision_hidden_size,
        "out_hidden_size": config.hidden_size,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    names = {
        "image_token_id": IMAGE_TOKEN,
        "video_token_id": VIDEO_TOKEN,
        "vision_start_token_id": _VISION_START,
        "vision_end_token_id": _VISION_END,
    }
    return {key: tokenizer.convert_tokens_to_ids(token) for key, token in names.items()} | {"tie_word_embeddings": True}
