"""Give a chat template the tool calls of a message in the form that it reads.

    Qwen, Llama, gpt-oss    {"content": "", "tool_calls": [{"function": {..., "arguments": {"a": 1}}}]}
    DeepSeek                {"content": null, "tool_calls": [{"function": {..., "arguments": "{\\"a\\": 1}"}}]}

Data hold either form. A template that gets the other one raises an error, drops the calls or escapes their quotes.
Rendering one call in each form shows which of them a template reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from slurm_rl.data.prompts import Message
from slurm_rl.errors import DataError


@dataclass(frozen=True)
class CallForm:
    """Form of a message that calls tools and has no text."""

    content: str | None
    is_text: bool
    """Whether the arguments are a string of JSON instead of an object."""


_FORMS = tuple(CallForm(content, is_text) for is_text in (False, True) for content in ("", None))
_PROBE = {"type": "function", "id": "call00000", "function": {"name": "probed_tool", "arguments": {"probed_key": "x"}}}
_SPOILED = ("'probed_key'", '\\"probed_key', "None")
"""Arguments as Python writes them or with escaped quotes, and a content of null as text."""


def convert_calls(messages: Sequence[Message], tokenizer: Any, name: str) -> Sequence[Message]:
    """Return the messages with tool calls in the form that the template reads; raise DataError if it reads none."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    form = _find_form(tokenizer, tokenizer.get_chat_template())
    if form is None:
        raise DataError(
            f"{name}: tool calls need a chat template that writes them",
            seen=f"a template of {tokenizer.name_or_path or 'the tokenizer'} that drops or refuses calls",
            action="choose a model that was taught to call tools, or take the row out",
        )
    return [_convert(message, form) for message in messages]


@lru_cache(maxsize=8)
def _find_form(tokenizer: Any, template: str) -> CallForm | None:
    question = {"role": "user", "content": "?"}
    for form in _FORMS:
        call = _convert({"role": "assistant", "content": None, "tool_calls": [_PROBE]}, form)
        try:
            text = tokenizer.apply_chat_template([question, call], chat_template=template, tokenize=False)
        except Exception:  # a template raises any error
            continue
        if "probed_tool" in text and "probed_key" in text and not any(sign in text for sign in _SPOILED):
            return form
    return None


def _convert(message: Message, form: CallForm) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [_convert_call(call, form) for call in message["tool_calls"]]
    return {**message, "content": message["content"] or form.content, "tool_calls": calls}


def _convert_call(call: dict[str, Any], form: CallForm) -> dict[str, Any]:
    if "function" in call:
        return {**call, "function": _convert_call(call["function"], form)}
    arguments = call.get("arguments", {})
    if isinstance(arguments, str) and not form.is_text:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return call
    elif form.is_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "arguments": arguments}
