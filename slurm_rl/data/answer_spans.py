"""Find the assistant's turns in a rendered conversation by its structure, never by searching for the text.

    begun       <|im_start|>user\\n?<|im_end|>\\n<|im_start|>assistant\\n
    turn        <|im_start|>user\\n?<|im_end|>\\n<|im_start|>assistant\\nHello<|im_end|>\\n ... later messages
    other       <|im_start|>user\\n?<|im_end|>\\n<|im_start|>assistant\\nX<|im_end|>\\n ... later messages

A turn is rendered again after a placeholder question, with all later messages, because templates drop the thinking of
earlier turns. It starts where the generation prompt (`begun`) ends, and stops where `turn` and `other` become equal.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message
from slurm_rl.errors import DataError

_REASONING = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message that templates read the thinking from."""
_FIRST_UNUSED = 0xE000
"""Start of Unicode's private use area."""


@dataclass(frozen=True)
class AnswerSpan:
    """Characters of one turn of the assistant in the rendered conversation."""

    start: int
    """Where the model starts to generate."""
    stop: int
    """End of the words or of the last tool call; in a template of one call per turn, of the last argument."""
    closed: int
    """End of the text that the template always writes after the words."""


def find_answer(messages: Sequence[Message], number: int, text: str, template: ChatTemplate, name: str) -> AnswerSpan:
    """Find the turn `messages[number]` in `text`, which is rendered without a generation prompt.

    Raises:
        DataError: the template drops words of the turn, or writes it differently after other messages.
    """
    mark = next(one for one in map(chr, range(_FIRST_UNUSED, 0x110000)) if one not in text)
    message, later = messages[number], messages[number + 1 :]
    system = takewhile(lambda one: one["role"] in ("system", "developer"), messages[:number])
    before = [*system, _say("user", mark, message)]
    changed = _change(message, mark)

    def render(*turns: Message, go_on: bool = False) -> str:
        return template.render([*before, *turns], name, add_generation_prompt=go_on)

    begun, alone, other = render(go_on=True), render(message, *later), render(changed, *later)
    start = len(begun)
    if not alone.startswith(begun):
        # Text in place of calls: their first characters may equal a tag in the generation prompt.
        text_turn = render(_say("assistant", mark, message), *later)
        start = min(count_shared(begun, text_turn), count_shared(begun, alone))
    stop = max(start, len(alone) - _count_tail(alone, other))
    if not text.endswith(alone[start:]):
        raise DataError(
            f"{name}: the chat template must render an assistant turn independently of earlier turns",
            seen=f"message {number + 1}, as {shorten(repr(alone[start:stop].replace(mark, '?')))} after a question",
            action="remove the earlier turns from the row, or correct the template",
        )
    dropped = find_dropped(message, alone[start:stop], is_last=not later)
    if dropped is not None:
        raise DataError(
            f"{name}: the chat template must render the content of assistant messages",
            seen=f"message {number + 1} without {shorten(repr(dropped))}",
            action="use a template that renders it, or remove it from the row",
        )
    last, other_last = (render(message), render(changed)) if later else (alone, other)
    closing = last[len(last) - _count_tail(last, other_last) :]
    followed = render(message, go_on=True)[len(last) - len(closing) :]
    closed = stop + count_shared(alone[stop:], closing[: count_shared(closing, followed)])
    if message.get("tool_calls"):
        stop += _count_call_end(before, message, last, closing, template, name)
    shift = len(text) - len(alone)
    return AnswerSpan(start + shift, stop + shift, closed + shift)


def _count_call_end(
    before: Sequence[Message], message: Message, last: str, closing: str, template: ChatTemplate, name: str
) -> int:
    """Return how many characters of `closing` end the call instead of the turn: another call may follow them."""
    calls = message["tool_calls"]
    try:
        twice = template.render(
            [*before, {**message, "tool_calls": [*calls, calls[-1]]}], name, add_generation_prompt=False
        )
    except DataError:  # a template of one call per turn
        return 0
    # gpt-oss writes the first call only.
    return 0 if twice == last else count_shared(closing, twice[len(last) - len(closing) :])


def count_shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the longest common prefix of two strings or lists.

    >>> count_shared("abc", "abd")
    2
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def find_dropped(message: Message, words: str, *, is_last: bool) -> str | None:
    """Return a part of the message that the template left out, or None. Templates drop the thinking of earlier turns,
    so only the last turn must be complete."""
    calls = [call.get("function", call)["name"] for call in message.get("tool_calls") or ()]
    said = [line.strip() for line in _read_lines(message)] if is_last else []
    missing = [part for part in (*calls, *said) if part and part not in words]
    return missing[0] if missing else None if words.strip() else str(message["content"])


def _read_lines(message: Message) -> Iterator[str]:
    """Yield the lines of thinking and content, without the tags around thinking."""
    content = message["content"] or ""
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content]
    reasoning = [message[key] for key in _REASONING if isinstance(message.get(key), str)]
    for part in (*reasoning, *parts):
        yield from re.split(r"</?think>|\n", part)


def _say(role: str, mark: str, like: Message) -> Message:
    """Return a message of one character, in parts where `like` has parts."""
    has_parts = isinstance(like["content"], list)
    return {"role": role, "content": [{"type": "text", "text": mark}] if has_parts else mark}


def _change(message: Message, mark: str) -> Message:
    """Return another answer of the same kind: text, or the same calls with other arguments."""
    if not message.get("tool_calls"):
        return _say("assistant", mark, message)
    return {**message, "tool_calls": [_change_arguments(call, mark) for call in message["tool_calls"]]}


def _change_arguments(call: dict[str, Any], mark: str) -> dict[str, Any]:
    if "function" in call:
        return {**call, "function": _change_arguments(call["function"], mark)}
    return {**call, "arguments": json.dumps({mark: mark}, ensure_ascii=False)}


def _count_tail(one: str, other: str) -> int:
    """Return the length of the longest common suffix."""
    return count_shared(one[::-1], other[::-1])
