"""Prompts with images: every way to write one, turned into messages whose image parts name where the pixels are.

    {"prompt": [{"role": "user", "content": [{"type": "image", "image": "1.jpg"}, {"type": "text", "text": "?"}]}]}
    {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}], "images": ["1.jpg"]}
    {"prompt": "?", "images": "1.jpg"}                       one user message, the images before the text
    {"message": "[{\\"role\\": \\"user\\", ...}]"}               a list of messages that was written as a string

Columns are named by data.prompt_key and data.image_key; what an image may be says images.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from slurm_rl.errors import DataError
from slurm_rl.train.data.images import parse_source

Message: TypeAlias = dict[str, Any]
"""A chat message: `role` and `content`, and whatever else the chat template reads."""


def is_messages(value: Any) -> bool:
    """A list of messages that is not empty."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in value)
    )


def parse_prompt(prompt: Any, images: Any, folder: Path, where: str) -> Any:
    """The prompt with its images in it; one without images comes back as it was, a stringified list as a list.

    Args:
        prompt: text, messages, or messages in a JSON string; anything else is returned for others to refuse.
        images: of the row's image column: None, one image or a list of them.
        folder: that of the data file.

    Raises:
        DataError: a part or an image is not one, or there are more images than places or fewer.
    """
    if isinstance(prompt, str):
        prompt = _parse_string(prompt)
    waiting = images if isinstance(images, list) else [] if images is None else [images]
    if is_messages(prompt):
        return _fill(prompt, waiting, folder, where)
    if not waiting or not isinstance(prompt, str):
        return prompt
    parts = [_image_part(image, folder, where) for image in waiting]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}]


def list_images(prompt: str | list[Message]) -> list[str]:
    """Sources of a parsed prompt's images, in order."""
    if isinstance(prompt, str):
        return []
    contents = [message["content"] for message in prompt if isinstance(message["content"], list)]
    return [part["image"] for content in contents for part in content if _is_image(part)]


def _parse_string(prompt: str) -> Any:
    # Only what is a list of messages in every respect: other text may begin with a bracket, too.
    if not prompt.lstrip().startswith("[{"):
        return prompt
    try:
        parsed = json.loads(prompt)
    except (json.JSONDecodeError, RecursionError):
        return prompt
    return parsed if is_messages(parsed) else prompt


def _fill(messages: list[Message], waiting: list[Any], folder: Path, where: str) -> list[Message]:
    given = iter(waiting)
    places = 0
    filled = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            parts = []
            for part in content:
                if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                    raise DataError(
                        f"{where}: a part of a message must be an object with a type",
                        seen=repr(part)[:80],
                        action='write {"type": "text", "text": ...} or {"type": "image", "image": ...}',
                    )
                if _is_image(part):
                    source = _own_source(part)
                    if source is None:
                        places += 1
                        source = next(given, None)
                    part = None if source is None else _image_part(source, folder, where)
                parts.append(part)
            message = {**message, "content": parts}
        filled.append(message)
    if places == 0 and waiting:
        return _put_before_text(filled, [_image_part(image, folder, where) for image in waiting], where)
    if places != len(waiting):
        raise DataError(
            f"{where}: each image part without an image of its own takes one of data.image_key",
            seen=f"{places} such parts and {len(waiting)} images",
            action="correct the row",
        )
    return filled


def _put_before_text(messages: list[Message], parts: list[Message], where: str) -> list[Message]:
    """Images that no part asks for stand before the text of the first user message."""
    for index, message in enumerate(messages):
        if message["role"] == "user":
            content = message["content"]
            text = [{"type": "text", "text": content}] if isinstance(content, str) else content
            return [*messages[:index], {**message, "content": [*parts, *text]}, *messages[index + 1 :]]
    raise DataError(f"{where}: images need a message of the user", seen="none", action="correct the roles of the row")


def _is_image(part: Message) -> bool:
    return part["type"] in ("image", "image_url")


def _own_source(part: Message) -> Any:
    source = part.get(part["type"])
    return source.get("url") if part["type"] == "image_url" and isinstance(source, dict) else source


def _image_part(image: Any, folder: Path, where: str) -> Message:
    return {"type": "image", "image": parse_source(image, folder, where)}
