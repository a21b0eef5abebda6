"""Put the images of a row into its messages, and find missing files. No image is opened here.

prompt "How long is <image>?" + images ["1.png"]
-> [{"role": "user", "content": [{"type": "text", "text": "How long is "},
                                 {"type": "image", "image": "/data/1.png"}, {"type": "text", "text": "?"}]}]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from slurm_rl.errors import DataError

MARK = "<image>"


def place_images(prompt: Any, values: Any, where: str) -> list[dict[str, Any]]:
    """Return the prompt as messages with every image in its place; raise DataError if their numbers differ.

    Args:
        values: image column: a path, bytes, {"path": ..., "bytes": ...}, a list of these, or None.
    """
    listed = values if isinstance(values, list) else [] if values is None else [values]
    images = [_parse_image(value, where) for value in listed]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    spread = [{**message, "content": _spread(message["content"])} for message in messages]
    places = [part for part in _image_parts(spread) if part.get("image") is None]
    if not places and images:
        user = next((message for message in spread if message["role"] == "user"), spread[0])
        places = [{"type": "image"} for _ in images]
        content = user["content"] or []
        user["content"] = [*places, *([{"type": "text", "text": content}] if isinstance(content, str) else content)]
    if len(places) != len(images):
        raise DataError(
            f"{where}: each image needs a place in the prompt (data.image_key)",
            seen=f"{len(images)} images for {len(places)} places",
            action='write {"type": "image"} or <image> once for each, or none at all',
        )
    for place, image in zip(places, images, strict=True):
        place["image"] = image
    return spread


def resolve_images(messages: list[dict[str, Any]], folder: Path | None, folders: Folders) -> list[str]:
    """Make the paths of all image parts absolute, in place, and return them; URLs and `data:` stay unchanged."""
    paths = []
    for part in _image_parts(messages):
        value = part.get("image")
        if not isinstance(value, str) or value.startswith("data:") or "://" in value.removeprefix("file://"):
            continue
        # Joining an absolute path to a folder does not change it.
        path = (folder or Path()) / value.removeprefix("file://")
        if value.startswith("file://") and not folders.has(str(path)):
            path = Path(unquote(str(path)))  # some write %20, some a blank
        part["image"] = str(path)
        paths.append(str(path))
    return paths


class Folders:
    """Cache of folder listings, for a short time: one listing is faster than a stat per image on a shared disk."""

    def __init__(self) -> None:
        self._held: dict[Path, frozenset[str]] = {}

    def has(self, path: str) -> bool:
        folder = Path(path).parent
        if folder not in self._held:
            try:
                self._held[folder] = frozenset(map(str, folder.iterdir()))
            except OSError:
                self._held[folder] = frozenset()
        return path in self._held[folder]


def _image_parts(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if isinstance(message["content"], list):
            yield from (part for part in message["content"] if isinstance(part, dict) and part.get("type") == "image")


def _spread(content: Any) -> Any:
    """Return text with marks as parts, and a list of parts as a copy."""
    if isinstance(content, list):
        return [dict(part) if isinstance(part, dict) else part for part in content]
    if not isinstance(content, str) or MARK not in content:
        return content
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(content.split(MARK)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def _parse_image(value: Any, where: str) -> str | bytes:
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str | bytes) and value:
        return value
    raise DataError(
        f"{where}: an image must be a path or bytes (data.image_key)",
        seen=type(value).__name__,
        action="correct the row",
    )
