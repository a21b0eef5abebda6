"""Prompts to train on, prompts to evaluate on, and how a row becomes tokens."""

from __future__ import annotations

from slurm_rl.config.base import NonNegativeInt, PositiveInt, Section


class DataConfig(Section):
    """Where the prompts come from."""

    root: str = "data"
    """Folder that `prepare --root` wrote to; the presets +data=gsm8k, math and mathv60k begin there."""
    train: str = ""
    """What to train on, which is asked for: `addition` (made here); a .jsonl, .json or .parquet file; a folder of the
    `datasets` library or of such files; or the name of a data set on the Hugging Face hub."""
    eval: str | None = None
    """Held-out data, as in `train`; null takes `num_eval` rows away from `train` before training."""
    num_eval: NonNegativeInt = 500
    """Rows held out when `eval` is null, or read from the eval data at the most."""
    subset: str | None = None
    """For a folder or a hub name with several data sets in it: which."""
    revision: str | None = None
    """For a hub name: branch, tag or commit; null takes the newest, to which a run is held once it began."""
    train_split: str = "train"
    """For a folder or a hub name: the split to train on."""
    eval_split: str = "test"
    """For a folder or a hub name: the split to evaluate on."""
    input_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (also as JSON in a string)."""
    label_key: str | None = "answer"
    """Column with the reference answer, a string; null when the reward needs none."""
    image_key: str | None = None
    """Column with the images of the prompt, or of the conversation: a path, bytes, or a list of them. They take the
    places of the `{"type": "image"}` parts or of `<image>` in the text, or stand before it; relative paths start at
    the data file."""
    messages_key: str = "messages"
    """Column with a whole conversation, for task=sft; a row without it has `input_key` and `label_key`."""
    chosen_key: str = "chosen"
    """Column with the better answer, for task=rm and dpo: a string, or messages; without `input_key` the
    messages that chosen and rejected begin with are the prompt."""
    rejected_key: str = "rejected"
    """Column with the worse answer."""
    margin_key: str | None = None
    """Column with by how much the scores should differ, for task=rm; null: any difference will do."""
    chat_template: bool = False
    """Render the prompt with the tokenizer's chat template."""
    max_prompt_tokens: PositiveInt = 1024
    """Longest prompt; a longer one is an error that names its row, never cut silently."""
    largest_addend: PositiveInt = 99
    """For `addition`: both numbers run from 0 to this."""
