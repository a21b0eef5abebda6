"""Prompts to train on, prompts to evaluate on, and how a row becomes tokens."""

from __future__ import annotations

from slurm_rl.config.base import NonNegativeInt, PositiveInt, Section


class DataConfig(Section):
    """Where the prompts come from."""

    train: str = "addition"
    """`addition` (made here), or a .jsonl file with one object a line."""
    eval: str | None = None
    """Held-out file; null takes `num_eval` rows away from `train` before training."""
    num_eval: NonNegativeInt = 500
    """Rows held out when `eval` is null, or read from the eval file at the most."""
    prompt_key: str = "prompt"
    """Column with the prompt: a string, or a list of chat messages with text and image parts."""
    answer_key: str = "answer"
    """Column with the reference answer, a string."""
    image_key: str | None = None
    """Column with the images of a prompt, one or a list; null: none but those that messages name themselves."""
    chat_template: bool = False
    """Render the prompt with the tokenizer's chat template."""
    max_prompt_tokens: PositiveInt = 1024
    """Longest prompt; a longer one is an error that names its row, never cut silently."""
    largest_addend: PositiveInt = 99
    """For `addition`: both numbers run from 0 to this."""
