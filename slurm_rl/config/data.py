"""Prompts to train on, prompts to evaluate on, and how a row becomes tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from slurm_rl.config.curriculum import CurriculumConfig
from slurm_rl.config.rows import RowsConfig, SetName
from slurm_rl.config.section import PositiveInt
from slurm_rl.config.sources import LEAST_SHARE, SourceConfig

Overlong = Literal["refuse", "leave_out"]


class DataConfig(RowsConfig):
    """Where the prompts come from."""

    root: str = "data"
    """Folder that `prepare --root` wrote to; the presets +data=gsm8k, math and mathv60k begin there."""
    sources: dict[SetName, SourceConfig] = Field(default={})
    """Several of these by names of your own, in place of data.train: +data.sources.sums.train=addition. Of the columns
    and splits that one does not name it has those of data."""
    curriculum: CurriculumConfig | None = None
    """Pass over rows that the policy solves always or never, by how often it has solved them so far; null: take them
    all. data.curriculum={} has the defaults."""
    messages_key: str = "messages"
    """Column with a whole conversation, for task=sft; a row without it has `input_key` and `label_key`."""
    chosen_key: str = "chosen"
    """Column with the better answer, for task=rm and dpo: a string, or messages; without `input_key` the
    messages that chosen and rejected begin with are the prompt."""
    rejected_key: str = "rejected"
    """Column with the worse answer."""
    tools_key: str | None = "tools"
    """Column with the tools that the row's conversation may call, for task=sft and dpo: a list of JSON schemas (also as
    JSON in a string), which the chat template shows the model. Null: the column is not read."""
    margin_key: str | None = None
    """Column with by how much the scores should differ, for task=rm; null: any difference will do."""
    chat_template: bool | Literal["auto"] = "auto"
    """Render prompts with the tokenizer's chat template; a text becomes one user message. auto: if the tokenizer has a
    template. false: prompts are plain text."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Variables of the chat template, such as `{enable_thinking: false}` for Qwen3. One that the template does not
    read is an error."""
    max_prompt_tokens: PositiveInt = 1024
    """Longest prompt of task=grpo, in tokens; nothing is ever cut."""
    overlong: Overlong = "refuse"
    """A row that is longer than data.max_prompt_tokens, supervised.max_tokens or the model's context ends the run with
    its name (as in verl, which filters when asked to), or is left out and counted in an event."""

    @model_validator(mode="before")
    @classmethod
    def _fill_sources(cls, tree: Any) -> Any:
        """What a source does not say is as the data say it; a saved config says it for each."""
        sources = tree.get("sources") if isinstance(tree, dict) else None
        if not isinstance(sources, Mapping):
            return tree
        common = {key: tree[key] for key in RowsConfig.model_fields if key in tree and key not in ("train", "eval")}
        filled = {name: {**common, **one} if isinstance(one, Mapping) else one for name, one in sources.items()}
        return {**tree, "sources": filled}

    def problems(self) -> Iterator[str]:
        if self.chat_template_kwargs and not self.chat_template:
            yield (
                "data.chat_template_kwargs needs data.chat_template=true, which alone reads it; got "
                f"{self.chat_template_kwargs}. Next: data.chat_template=true, or leave it out"
            )
        with_system = [f"data.sources.{name}" for name, source in self.sources.items() if source.system is not None]
        named = with_system or (["data"] if self.system is not None else [])
        if named and not self.chat_template:
            yield f"{named[0]}.system needs data.chat_template=true, whose template says where it goes; got false"
        if self.sources and (self.train or self.eval is not None):
            yield (
                "data.train and data.eval are not read where there are data.sources, each of which has its own; got "
                f"{self.train or self.eval!r}. Next: make a source of it: +data.sources.<name>.train=..."
            )
        total = sum(source.weight for source in self.sources.values())
        for name, source in self.sources.items():
            if source.weight < LEAST_SHARE * total:
                yield (
                    f"data.sources.{name}.weight must be at least {LEAST_SHARE:g} of the sum of all weights, so that "
                    f"each block of places has one of it; got {source.weight:g} of {total:g}. Next: raise it"
                )
