"""A small random Qwen2.5-VL or Qwen3-VL with one token per byte, as a Hugging Face folder.

Its chat template renders one image and one text part as

    <|im_start|>user\\n<|vision_start|><|image_pad|><|vision_end|>Describe it.<|im_end|>\\n<|im_start|>assistant\\n

Special tokens are in the order of the real models: first the end of text.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from slurm_rl.config.model import TinyVLConfig
from slurm_rl.models.checkpoint.store import written_beside
from slurm_rl.models.tiny import draw_weights, shape_of

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
    tokenizer = build_byte_tokenizer(config.context_length)
    model = draw_weights(lambda: _build_model(config, tokenizer), tokenizer, seed)
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
        model.save_pretrained(beside)
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


def _build_model(config: TinyVLConfig, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    head_dim = config.hidden_size // config.num_heads
    # Time, height and width share the rotary pairs of a head, as 16 : 24 : 24 in the real models.
    quarter = head_dim // 8
    section = [head_dim // 2 - 2 * (quarter + quarter // 2), quarter + quarter // 2, quarter + quarter // 2]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": section}
    text, vision = shape_of(config, tokenizer), _vision_config(config)
    names = {"image": IMAGE_TOKEN, "video": VIDEO_TOKEN, "vision_start": _VISION_START, "vision_end": _VISION_END}
    common = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}
    common["tie_word_embeddings"] = True
    if config.family == "qwen2_5_vl":
        text |= {"rope_parameters": rope}
        vision |= {"patch_size": 14, "window_size": 112, "fullatt_block_indexes": [config.vision_num_layers - 1]}
        common["vision_token_id"] = common["video_token_id"]
        return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **common))
    text |= {"rope_parameters": {**rope, "mrope_interleaved": True}}
    # vLLM adds each of them to one of the first blocks of the language model.
    deepstack = list(range(min(config.vision_num_layers, config.num_layers)))
    vision |= {"patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": deepstack}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **common))


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
