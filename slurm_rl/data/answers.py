"""Rows that hold their answers: conversations to imitate, and pairs of a better and a worse answer.

    {"messages": [{"role": "user", "content": "3+4?"}, {"role": "assistant", "content": "7"}]}      sft
    {"prompt": "3+4=", "answer": "7"}                                                               sft
    {"prompt": "3+4=", "chosen": "7", "rejected": "8"}                                              rm, dpo
    {"chosen": [...messages...], "rejected": [...messages...]}      the prompt is what both begin with
    {"messages": [...], "images": ["1.png"]}                        with data.image_key=images

What is wrong is named with its line, as for prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_rl.config.data import DataConfig
from slurm_rl.data.image_parts import place_images
from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import SourceRow, Text, parse_prompt
from slurm_rl.data.records import DataSource, require_columns
from slurm_rl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class AnswerRow(SourceRow):
    """A prompt and what to say to it; messages may hold several turns of the assistant."""

    answer: Text
    """The whole conversation where the prompt is no messages at all."""

    @property
    def texts(self) -> list[Text]:
        return [self.prompt, self.answer]


@dataclass(frozen=True, kw_only=True)
class PairRow(SourceRow):
    """A prompt with a better and a worse answer."""

    chosen: Text
    rejected: Text
    margin: float = 0.0

    @property
    def texts(self) -> list[Text]:
        return [self.prompt, self.chosen, self.rejected]


def parse_answer(row: dict[str, Any], index: int, where: str, config: DataConfig) -> AnswerRow:
    """One row for sft."""
    label = config.label_key
    if row.get(config.messages_key) is None and label is not None and {config.input_key, label} <= row.keys():
        prompt = _with_images(_read_text(row[config.input_key], config.input_key, where), row, where, config)
        return AnswerRow(index=index, where=where, prompt=prompt, answer=_read_answer(row[label], label, where))
    messages = _read_answer(_require(row, config.messages_key, "data.messages_key", where), config.messages_key, where)
    if isinstance(messages, str):
        raise _wrong(where, config.messages_key, "a list of messages", messages)
    return AnswerRow(index=index, where=where, prompt=[], answer=_with_images(messages, row, where, config))


def parse_pair(row: dict[str, Any], index: int, where: str, config: DataConfig) -> PairRow:
    """One row for rm and dpo."""
    keys = {"data.chosen_key": config.chosen_key, "data.rejected_key": config.rejected_key}
    values = {option: _require(row, key, option, where) for option, key in keys.items()}
    chosen, rejected = (_read_answer(values[option], key, where) for option, key in keys.items())
    if chosen == rejected:
        raise DataError(
            f"{where}: {config.chosen_key!r} and {config.rejected_key!r} must differ",
            seen=shorten(repr(chosen)),
            action="take the row out: an equal pair teaches nothing",
        )
    prompt: Text
    if row.get(config.input_key) is not None:
        prompt = _with_images(_read_text(row[config.input_key], config.input_key, where), row, where, config)
    else:
        if not isinstance(chosen, str) and not isinstance(rejected, str):
            chosen, rejected = (_with_images(answer, row, where, config) for answer in (chosen, rejected))
        prompt, chosen, rejected = _split_shared(chosen, rejected, where, config)
    return PairRow(
        index=index,
        where=where,
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        margin=_read_margin(row, where, config),
    )


def _with_images(text: Text, row: dict[str, Any], where: str, config: DataConfig) -> Text:
    """With those of the image column in their places."""
    key = config.image_key
    return text if key is None else place_images(text, _require(row, key, "data.image_key", where), where)


def _require(row: dict[str, Any], key: str, option: str, where: str) -> Any:
    require_columns(DataSource(name=where, columns=((key, option),)), list(row), where)
    return row[key]


def _split_shared(chosen: Text, rejected: Text, where: str, config: DataConfig) -> tuple[Text, Text, Text]:
    """The messages that both begin with, and the rest of each."""
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(
            f"{where}: answers that are plain text need the column {config.input_key!r} (data.input_key)",
            seen=shorten(repr(chosen)),
            action="add the prompt, or write both answers as messages",
        )
    count = 0
    while count < min(len(chosen), len(rejected)) and chosen[count] == rejected[count]:
        count += 1
    prompt, rests = chosen[:count], (chosen[count:], rejected[count:])
    for key, rest in zip((config.chosen_key, config.rejected_key), rests, strict=True):
        if not any(message["role"] == "assistant" for message in rest):
            raise DataError(
                f"{where}: {key!r} must end with a turn of the assistant that the other answer does not have",
                seen=shorten(repr(rest)),
                action="correct the row",
            )
    return prompt, *rests


def _read_margin(row: dict[str, Any], where: str, config: DataConfig) -> float:
    if config.margin_key is None:
        return 0.0
    margin = _require(row, config.margin_key, "data.margin_key", where)
    if isinstance(margin, bool) or not isinstance(margin, (int, float)):
        raise _wrong(where, config.margin_key, "a number", margin)
    return float(margin)


def _read_text(value: Any, key: str, where: str) -> Text:
    text = parse_prompt(value)
    if text is None:
        raise _wrong(where, key, "text or a list of messages, each with role and content, and not empty", value)
    return text


def _read_answer(value: Any, key: str, where: str) -> Text:
    """Text that is not blank, or messages of which some are the assistant's, and none of those blank."""
    answer = _read_text(value.strip() and value if isinstance(value, str) else value, key, where)
    if isinstance(answer, str):
        return answer
    turns = [(n, message) for n, message in enumerate(answer) if message["role"] == "assistant"]
    if not turns:
        raise _wrong(where, key, "messages with a turn of the assistant", value)
    for number, message in turns:
        content = message["content"]
        if not content or (isinstance(content, str) and not content.strip()):
            raise DataError(
                f"{where}: a turn of the assistant must say something",
                seen=f"message {number + 1} of {key!r} with the content {content!r}",
                action="correct the row, or take it out",
            )
    return answer


def _wrong(where: str, key: str, wanted: str, value: Any) -> DataError:
    return DataError(
        f"{where}: {key!r} must be {wanted}",
        seen=f"{type(value).__name__} {shorten(repr(value))}",
        action="correct the row, or name another column in the data section",
    )
