"""The prompts of a run: rows that are read, checked and tokenized, and the text that a weight sync is proven with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_rl.config.run import RunConfig
from slurm_rl.data.chat import open_template
from slurm_rl.data.load import load_prompts
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.split import RowCounts, count_rows
from slurm_rl.data.tokenize import EncodedPrompt, encode_prompts
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.math.sequences import TokenPrompt
from slurm_rl.rl.groups import Prompts
from slurm_rl.train.model_folder import load_context_length

_PROBE_TOKENS = 64


def prepare_prompts(config: RunConfig, model_path: str) -> tuple[Prompts, RowCounts]:
    """Load, check and tokenize all rows; every bad row is named before anything is trained."""
    from slurm_rl.engine.model import load_tokenizer
    from slurm_rl.engine.vision import load_image_reader

    tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
    split = load_prompts(config.data)
    template = open_template(tokenizer, config.data)
    context_length = load_context_length(model_path, config.model.trust_remote_code)
    images = load_image_reader(model_path, config.model)
    if config.data.image_key is not None and images is None:
        raise DataError(
            "data.image_key needs a vision-language model",
            seen=f"{config.data.image_key!r} and {model_path}",
            action="choose a Qwen2.5-VL or Qwen3-VL, or set data.image_key=null",
        )

    def encode(rows: Sequence[PromptRow]) -> list[EncodedPrompt]:
        return encode_prompts(
            rows,
            tokenizer,
            template=template,
            max_prompt_tokens=config.data.max_prompt_tokens,
            context_length=context_length,
            max_tokens=config.rollout.max_tokens,
            overlong=config.data.overlong,
            images=images,
        )

    train, held_out = encode(split.train), encode(split.held_out)
    counts = count_rows(split, len(train), len(held_out))
    answers = encode_answers([prompt.answer for prompt in train], tokenizer) if config.warmup.num_steps else []
    max_images = None if images is None else max(len(prompt.images) for prompt in [*train, *held_out])
    if max_images and config.rollout.continuous:
        raise ConfigError(
            "rollout.continuous goes with text alone: completions in flight would keep what the old vision tower saw",
            seen=f"prompts with up to {max_images} images",
            action="set rollout.continuous=false",
        )
    return Prompts(train, held_out, answers, max_images), counts


def encode_answers(answers: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of each answer with the end-of-text token, for the warm-up."""
    encoded = tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    return [[*ids, tokenizer.eos_token_id] for ids in encoded]


def choose_probe(prompts: Prompts, longest: int) -> TokenPrompt:
    """Tokens of the first training prompts, end to end: text of the right vocabulary.

    With images it is the shortest of the first prompts that have one, whole: it also shows what the vision tower does.
    """
    seeing = [prompt.tokens for prompt in prompts.train[:_PROBE_TOKENS] if prompt.images]
    if seeing:
        return min(seeing, key=lambda prompt: len(prompt.token_ids))
    tokens = [token for prompt in prompts.train[:_PROBE_TOKENS] for token in prompt.token_ids]
    return TokenPrompt(token_ids=tokens[: min(_PROBE_TOKENS, longest)])
