"""Rows with answers: conversations to imitate, and pairs of a better and a worse answer.

{"messages": [{"role": "user", "content": "3+4?"}, {"role": "assistant", "content": "7"}]}      sft
{"prompt": "3+4=", "answer": "7"}                                                               sft
{"prompt": "3+4=", "chosen": "7", "rejected": "8"}                                              rm, dpo
{"chosen": [...messages...], "rejected": [...messages...]}      the prompt is their common start
{"prompt": "3+4?", "chosen": [...], "rejected": [...]}          the same, if the messages include the question
{"messages": [...], "tools": [{"type": "function", "function": {"name": "add", ...}}]}          sft, dpo
{"messages": [...], "images": ["1.png"]}                        with data.image_key=images
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from slurm_rl.config.data import DataConfig
from slurm_rl.data.chat import as_messages
from slurm_rl.data.image_parts import place_images
from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message, SourceRow, Text, parse_prompt
from slurm_rl.data.records import DataSource, require_columns
from slurm_rl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class AnswerRow(SourceRow):
    """A prompt and its answer; messages may hold several turns of the assistant."""

    answer: Text
    """The whole conversation where the prompt is no messages at all."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """JSON schemas of the tools that the chat template shows the model."""

    @property
    def texts(self) -> list[Text]:
        return [self.prompt, self.answer]


@dataclass(frozen=True, kw_only=True)
class PairRow(SourceRow):
    chosen: Text
    rejected: Text
    margin: float = 0.0
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def texts(self) -> list[Text]:
        return [self.prompt, self.chosen, self.rejected]


def parse_answer(row: dict[str, Any], index: int, where: str, config: DataConfig) -> AnswerRow:
    label, tools = config.label_key, _read_tools(row, where, config)
    if row.get(config.messages_key) is None and label is not None and {config.input_key, label} <= row.keys():
        prompt = _read_text(row[config.input_key], config.input_key, where)
        answer = _read_answer(row[label], label, where)
        if not _include_question([answer], prompt, where, config):
            prompt = _with_images(prompt, row, where, config)
            return AnswerRow(index=index, where=where, prompt=prompt, answer=answer, tools=tools)
    else:
        key = config.messages_key
        answer = _read_answer(_require(row, key, "data.messages_key", where), key, where)
        if isinstance(answer, str):
            raise _wrong(where, key, "a list of messages", answer)
    answer = _with_images(answer, row, where, config)
    return AnswerRow(index=index, where=where, prompt=[], answer=answer, tools=tools)


def parse_pair(row: dict[str, Any], index: int, where: str, config: DataConfig) -> PairRow:
    keys = {"data.chosen_key": config.chosen_key, "data.rejected_key": config.rejected_key}
    values = {option: _require(row, key, option, where) for option, key in keys.items()}
    chosen, rejected = (_read_answer(values[option], key, where) for option, key in keys.items())
    if chosen == rejected:
        raise DataError(
            f"{where}: {config.chosen_key!r} and {config.rejected_key!r} must differ",
            seen=shorten(repr(chosen)),
            action="remove the row: an equal pair has no gradient",
        )
    question = row.get(config.input_key)
    prompt = None if question is None else _read_text(question, config.input_key, where)
    if prompt is not None and not _include_question([chosen, rejected], prompt, where, config):
        prompt = _with_images(prompt, row, where, config)
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
        tools=_read_tools(row, where, config),
    )


def _include_question(answers: Sequence[Text], prompt: Text, where: str, config: DataConfig) -> bool:
    """Return whether the answers are whole conversations; raise DataError if they begin with another question."""
    conversations = [answer for answer in answers if not isinstance(answer, str)]
    before = [list(takewhile(lambda one: one["role"] != "assistant", messages)) for messages in conversations]
    asked = as_messages(prompt)
    if not any(before) or asked[-1]["role"] != "user":
        return False
    is_whole = all(before) and len(before) == len(answers)
    if is_whole and all(_strip(one) in map(_strip, messages) for one in asked for messages in conversations):
        return True
    raise DataError(
        f"{where}: the question in {config.input_key!r} must be in a conversation that begins with a question",
        seen=f"{shorten(repr(asked[-1]['content']))} and {shorten(repr(answers[0]))}",
        action="correct the row, or set data.input_key to a column that the rows do not have",
    )


def _strip(message: Message) -> tuple[str, Any]:
    content = message["content"]
    return message["role"], content.strip() if isinstance(content, str) else content


def _read_tools(row: dict[str, Any], where: str, config: DataConfig) -> list[dict[str, Any]]:
    value = None if config.tools_key is None else row.get(config.tools_key)
    tools = _parse_json(value)
    if tools is None or tools == [] or tools == "":
        return []
    if not isinstance(tools, list) or not all(_find_name(tool) and "function" in tool for tool in tools):
        raise _wrong(where, str(config.tools_key), 'a list of tools like {"function": {"name": ...}}', value)
    return tools


def _find_name(value: Any) -> str | None:
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _parse_json(value: Any) -> Any:
    """Return the value of a JSON string, and other values unchanged."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _with_images(text: Text, row: dict[str, Any], where: str, config: DataConfig) -> Text:
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
                f"{where}: {key!r} must end with an assistant turn that the other answer does not have",
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
    answer = _read_text(value.strip() and value if isinstance(value, str) else value, key, where)
    if isinstance(answer, str):
        return answer
    turns = [(n, message) for n, message in enumerate(answer) if message["role"] == "assistant"]
    if not turns:
        raise _wrong(where, key, "messages with a turn of the assistant", value)
    for number, message in turns:
        content, calls = message["content"], message.get("tool_calls")
        if calls and not (isinstance(calls, list) and all(map(_find_name, calls))):
            raise _wrong(where, key, 'messages with tool_calls like [{"function": {"name": ...}}]', calls)
        if not calls and (not content or (isinstance(content, str) and not content.strip())):
            raise DataError(
                f"{where}: an assistant turn must not be empty",
                seen=f"message {number + 1} of {key!r} with the content {content!r}",
                action="correct or remove the row",
            )
    return answer


def _wrong(where: str, key: str, wanted: str, value: Any) -> DataError:
    return DataError(
        f"{where}: {key!r} must be {wanted}",
        seen=f"{type(value).__name__} {shorten(repr(value))}",
        action="correct the row, or name another column in the data section",
    )
