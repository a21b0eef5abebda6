"""The text of a prompt: the prompt itself, or the model's chat template filled with it."""

from __future__ import annotations

from typing import Any

from slurm_rl.errors import DataError
from slurm_rl.train.data.prompts import Message, PromptRow


def check_chat_template(tokenizer: Any) -> None:
    """Raise DataError when the tokenizer has no chat template."""
    if not tokenizer.chat_template:
        raise DataError(
            "data.chat_template=true needs a tokenizer with a chat template",
            seen=f"{tokenizer.name_or_path or type(tokenizer).__name__} without one",
            action="use an instruction-tuned model, or set data.chat_template=false",
        )


def render_prompt(row: PromptRow, tokenizer: Any, chat_template: bool) -> str:
    """Return the text to encode; with `chat_template`, a plain prompt becomes one user message.

    Raises:
        DataError: messages without a template, messages the template refuses, or invalid Unicode.
    """
    text = _fill_template(row, tokenizer) if chat_template else row.prompt
    if not isinstance(text, str):
        raise DataError(
            f"row {row.index}: a prompt that is a list of messages needs the chat template",
            seen="data.chat_template=false",
            action="set data.chat_template=true, or name a text column in data.input_key",
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"row {row.index}: a prompt must be valid Unicode",
            seen=f"half a surrogate pair at character {error.start}",
            action="correct the row",
        ) from None
    return text


def as_messages(text: str | list[Message], role: str = "user") -> list[Message]:
    """Messages as they are; plain text as one message."""
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def drop_sources(messages: list[Message]) -> list[Message]:
    """The messages with the kind alone of a part that is no text: the bytes of an image may be in it."""
    return [
        {**message, "content": [_drop_source(part) for part in content]}
        if isinstance(content := message["content"], list)
        else message
        for message in messages
    ]


def _drop_source(part: Any) -> Any:
    kind = part.get("type", "text") if isinstance(part, dict) else "text"
    return part if kind == "text" else {"type": kind}


def _fill_template(row: PromptRow, tokenizer: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(as_messages(row.prompt), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of the model's author and raises what it likes
        raise DataError(
            f"row {row.index}: the tokenizer's chat template must accept the messages",
            seen=f"{type(error).__name__}: {error}",
            action="correct the roles and contents of the row",
        ) from error
