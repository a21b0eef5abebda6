"""Config of the training and evaluation data, and how a row becomes tokens."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from slurm_rl.config.rows import LEAST_SHARE, RowsConfig, SetName, SourceConfig, inherit_columns
from slurm_rl.config.section import Fraction, PositiveInt, Section

Overlong = Literal["refuse", "leave_out"]


class CurriculumConfig(Section):
    """Skip rows that the policy always or never solves, by its success rate so far."""

    low: Fraction = 0.0
    """Skip a row with this success rate or less."""
    high: Fraction = 1.0
    """Skip a row with this success rate or more."""
    min_samples: PositiveInt = 8
    """Completions of a row before it may be skipped."""
    candidates: PositiveInt = 4
    """Rows considered per prompt of a batch; the first that is not skipped is taken, or the first if all are."""
    revisit: Fraction = 0.1
    """Share of prompts taken regardless of their success rate, so that skipped rows are measured again."""

    def problems(self) -> Iterator[str]:
        if self.low >= self.high:
            yield (
                f"data.curriculum.low must be below data.curriculum.high; got {self.low:g} and {self.high:g}. "
                "Next: low=0 high=1 skips rows that are solved never or always"
            )


class DataConfig(RowsConfig):
    """Training and evaluation data."""

    root: str = "data"
    """Folder of prepared data sets (`prepare --root`), where the presets +data=gsm8k, math and mathv60k begin."""
    sources: dict[SetName, SourceConfig] = Field(default={})
    """Mixture of named sources in place of data.train: +data.sources.sums.train=sums.jsonl. Columns and splits that a
    source does not set are inherited from data."""
    curriculum: CurriculumConfig | None = None
    """Skip rows that the policy always or never solves; null: train on all rows. data.curriculum={} uses the
    defaults."""
    messages_key: str = "messages"
    """Column with a whole conversation, for task=sft; rows without it use `input_key` and `label_key`."""
    chosen_key: str = "chosen"
    """Column with the preferred answer, for task=rm and dpo: a string or messages; without `input_key` the common
    first messages of chosen and rejected are the prompt."""
    rejected_key: str = "rejected"
    """Column with the rejected answer."""
    tools_key: str | None = "tools"
    """Column with the tools of the conversation, for task=sft and dpo: a list of JSON schemas (also as a JSON string)
    for the chat template; null: ignore the column."""
    margin_key: str | None = None
    """Column with the minimum score difference of the pair, for task=rm; null: no margin."""
    chat_template: bool | Literal["auto"] = "auto"
    """Render prompts with the tokenizer's chat template (a text becomes a user message); auto: if the tokenizer has
    one; false: prompts are plain text."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Variables of the chat template, such as `{enable_thinking: false}` for Qwen3; unknown ones are an error."""
    max_prompt_tokens: PositiveInt = 1024
    """Longest prompt of task=grpo, in tokens; prompts are never truncated."""
    overlong_prompts: Overlong = "refuse"
    """Rows longer than data.max_prompt_tokens, supervised.max_tokens or the model's context. refuse: fail and name the
    row; leave_out: drop and count them."""

    @model_validator(mode="before")
    @classmethod
    def _fill_sources(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or "sources" not in tree:
            return tree
        return {**tree, "sources": inherit_columns(tree, tree["sources"], RowsConfig)}

    def problems(self) -> Iterator[str]:
        if self.chat_template_kwargs and not self.chat_template:
            yield (
                "data.chat_template_kwargs needs data.chat_template=true; got "
                f"{self.chat_template_kwargs}. Next: data.chat_template=true, or leave it out"
            )
        with_system = [f"data.sources.{name}" for name, source in self.sources.items() if source.system is not None]
        named = with_system or (["data"] if self.system is not None else [])
        if named and not self.chat_template:
            yield f"{named[0]}.system needs data.chat_template=true, whose template places it; got false"
        if self.sources and (self.train or self.eval is not None):
            yield (
                "data.train and data.eval are not used with data.sources, which have their own; got "
                f"{self.train or self.eval!r}. Next: make a source of it: +data.sources.<name>.train=..."
            )
        total = sum(source.weight for source in self.sources.values())
        for name, source in self.sources.items():
            if source.weight < LEAST_SHARE * total:
                yield (
                    f"data.sources.{name}.weight must be at least {LEAST_SHARE:g} of the sum of all weights, so that "
                    f"every block of prompts includes it; got {source.weight:g} of {total:g}. Next: raise it"
                )
