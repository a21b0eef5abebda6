"""Which rows, and which of their columns: what the data, a source of a mixture and a set of an evaluation each say."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from slurm_rl.config.section import NonNegativeInt, PositiveInt, Section

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$")]
"""Of a source or of a set: part of metric names and keys."""


class ColumnsConfig(Section):
    """What is in a row, wherever it is."""

    subset: str | None = None
    """For a folder or a hub name with several data sets in it: which."""
    revision: str | None = None
    """For a hub name: branch, tag or commit; null takes the newest, to which a run is held once it began."""
    input_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (also as JSON in a string)."""
    label_key: str | None = "answer"
    """Column with the reference answer, a string; null when the reward needs none."""
    image_key: str | None = None
    """Column with the images of the prompt, or of the conversation: a path, bytes, or a list of them. They take the
    places of the `{"type": "image"}` parts or of `<image>` in the text, or come before it; relative paths start at
    the data file."""
    info_keys: list[str] | None = None
    """Columns that an environment gets of the row it is about, in `row.info`: values that JSON can hold. Null: all but
    those of the prompt, the answer and the images."""
    system: str | None = None
    """What a chat begins with, as a message of the system, where a row's messages have none of their own."""
    largest_addend: PositiveInt = 99
    """For `addition`: both numbers run from 0 to this."""


class RowsConfig(ColumnsConfig):
    """Rows to train on, and those that are held out of them."""

    train: str = ""
    """What to train on, which is asked for: `addition` (made here); a .jsonl, .json or .parquet file; a folder of the
    `datasets` library or of such files; or the name of a data set on the Hugging Face hub."""
    eval: str | None = None
    """Held-out data, as in `train`; rows of `train` whose prompt is among them are not trained on. Null takes
    `num_eval` rows with different prompts away from `train`. Which rows these are follows from their prompts alone, so
    every seed and every task holds the same ones of a file out."""
    num_eval: NonNegativeInt = 500
    """Rows held out when `eval` is null, or drawn from the eval data at the most; 0 evaluates nothing."""
    train_split: str = "train"
    """For a folder or a hub name: the split to train on."""
    eval_split: str = "test"
    """For a folder or a hub name: the split to evaluate on."""

    @field_validator("train", "eval", mode="before")
    @classmethod
    def _refuse_lists(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            raise ValueError("must be one file, folder or hub name. Next: put the files into one folder and name it")
        return value
