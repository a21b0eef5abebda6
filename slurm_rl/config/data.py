"""Prompts to train on, prompts to evaluate on, and how a row becomes tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from slurm_rl.config.section import NonNegativeInt, PositiveInt, Section

Overlong = Literal["refuse", "leave_out"]


class DataConfig(Section):
    """Where the prompts come from."""

    root: str = "data"
    """Folder that `prepare --root` wrote to; the presets +data=gsm8k, math and mathv60k begin there."""
    train: str = ""
    """What to train on, which is asked for: `addition` (made here); a .jsonl, .json or .parquet file; a folder of the
    `datasets` library or of such files; or the name of a data set on the Hugging Face hub."""
    eval: str | None = None
    """Held-out data, as in `train`; rows of `train` whose prompt is among them are not trained on. Null takes
    `num_eval` rows with different prompts away from `train`. Which rows these are follows from their prompts alone, so
    every seed and every task holds the same ones of a file out."""
    num_eval: NonNegativeInt = 500
    """Rows held out when `eval` is null, or drawn from the eval data at the most; 0 evaluates nothing."""
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
    places of the `{"type": "image"}` parts or of `<image>` in the text, or come before it; relative paths start at
    the data file."""
    info_keys: list[str] = Field(default=[])
    """Further columns that an environment gets of the row it is about, in `row.info`; values that JSON can hold."""
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
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Variables of the chat template, such as `{enable_thinking: false}` for Qwen3. One that the template does not
    read is an error."""
    max_prompt_tokens: PositiveInt = 1024
    """Longest prompt of task=grpo, in tokens; nothing is ever cut."""
    overlong: Overlong = "refuse"
    """A row that is longer than data.max_prompt_tokens, supervised.max_tokens or the model's context ends the run with
    its name (as in verl, which filters when asked to), or is left out and counted in an event."""
    largest_addend: PositiveInt = 99
    """For `addition`: both numbers run from 0 to this."""

    def problems(self) -> Iterator[str]:
        if self.chat_template_kwargs and not self.chat_template:
            yield (
                "data.chat_template_kwargs needs data.chat_template=true, which alone reads it; got "
                f"{self.chat_template_kwargs}. Next: data.chat_template=true, or leave it out"
            )
