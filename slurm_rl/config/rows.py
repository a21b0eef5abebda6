"""Config of rows: their columns, and how sources of a mixture and evaluation sets sample and score them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.section import (
    MinP,
    NonEmpty,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Section,
)

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,40}$")]
"""Name of a source or evaluation set, part of metric names and keys."""
LEAST_SHARE: Final = 0.001
"""Smallest share of a source: one prompt in a block of data/mixing.py."""


class ColumnsConfig(Section):
    """Columns of a data set."""

    subset: str | None = None
    """Configuration of a folder or hub data set that has several."""
    revision: str | None = None
    """Branch, tag or commit of a hub data set; null: the newest when the run first starts."""
    input_key: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (also as a JSON string)."""
    label_key: str | None = "answer"
    """Column with the reference answer, a string; null if the reward needs none."""
    image_key: str | None = None
    """Column with the images of the prompt or conversation: a path, bytes, or a list of them. They replace the
    `{"type": "image"}` parts or `<image>` in the text, or precede it; relative paths begin at the data file."""
    info_keys: list[str] | None = None
    """Columns, of JSON values, that an environment receives in `row.info`; null: all but prompt, answer and images."""
    system: str | None = None
    """System message for chats that do not have one."""
    largest_addend: PositiveInt = 99
    """Largest number in the built-in data set `addition`."""


class RowsConfig(ColumnsConfig):
    """Training rows and held-out rows."""

    train: str = ""
    """Training data: `addition` (generated); a .jsonl, .json or .parquet file; a folder of the `datasets` library or of
    such files; or a data set on the Hugging Face hub."""
    eval: str | None = None
    """Held-out data, as in `train`; rows of `train` with the same prompt are not trained on. null: hold out `num_eval`
    rows of `train` with different prompts, selected by a hash of the prompt, so all seeds and tasks hold out the
    same."""
    num_eval: NonNegativeInt = 500
    """Rows held out if `eval` is null, or sampled from the eval data at most; 0: no evaluation."""
    train_split: str = "train"
    """Training split of a folder or hub data set."""
    eval_split: str = "test"
    """Evaluation split of a folder or hub data set."""

    @field_validator("train", "eval", mode="before")
    @classmethod
    def _refuse_lists(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            raise ValueError("must be one file, folder or hub name. Next: put the files into one folder and name it")
        return value


class SamplingConfig(Section):
    """Sampling, environment and reward of some rows; null inherits the run's value."""

    env: EnvironmentConfig | None = None
    """Environment of these rows; `{}`: single-turn, also if the run has an environment."""
    reward: RewardConfig | None = None
    """Scoring of these rows."""
    max_tokens: PositiveInt | None = None
    """Longest completion of these rows, in tokens; at most rollout.max_tokens."""
    top_p: PositiveFraction | None = None
    """As rollout.top_p."""
    top_k: NonNegativeInt | None = None
    """As rollout.top_k."""
    min_p: MinP | None = None
    """As rollout.min_p."""
    repetition_penalty: PositiveFloat | None = None
    """As rollout.repetition_penalty."""
    stop: tuple[NonEmpty, ...] | None = None
    """As rollout.stop; []: none."""
    stop_token_ids: tuple[NonNegativeInt, ...] | None = None
    """As rollout.stop_token_ids; []: none."""

    def sampling(self) -> dict[str, Any]:
        """Return the keys of `rollout` that are set here."""
        names = [name for name in SamplingConfig.model_fields if name not in ("env", "reward")]
        values = {name: getattr(self, name, None) for name in (*names, "temperature")}
        return {name: value for name, value in values.items() if value is not None}


class SourceConfig(RowsConfig, SamplingConfig):
    """One source of a training mixture."""

    weight: PositiveFloat = 1.0
    """Relative weight: the source's share of the prompts is its weight over the sum of weights."""
    temperature: PositiveFloat | None = None
    """As rollout.temperature, also for the policy's logprobs of these rows."""


class EvalSetConfig(ColumnsConfig, SamplingConfig):
    """One additional evaluation set."""

    data: str = ""
    """Rows of the set, named as in data.train; they are not removed from the training data."""
    split: str = "test"
    """Split of a folder or hub data set."""
    num_rows: PositiveInt | None = None
    """Rows with different prompts to evaluate, selected by a hash of the prompt; null: all."""
    num_samples: PositiveInt = 1
    """Completions per prompt: k of avg@k, and the largest k of pass@k."""
    temperature: NonNegativeFloat | None = None
    """As rollout.temperature; 0: greedy."""

    def problems(self) -> Iterator[str]:
        if self.temperature == 0 and self.num_samples > 1:
            yield (
                f"num_samples must be 1 with temperature=0, which is deterministic; got {self.num_samples}. "
                "Next: num_samples=1, or a temperature above 0"
            )


def inherit_columns(tree: Mapping[str, Any], entries: object, columns: type[Section]) -> Any:
    """Fill the keys of `columns` that an entry (a source, a set) leaves out from `tree`, except train and eval."""
    if not isinstance(entries, Mapping):
        return entries
    common = {key: tree[key] for key in columns.model_fields if key in tree and key not in ("train", "eval")}
    return {name: {**common, **one} if isinstance(one, Mapping) else one for name, one in entries.items()}
