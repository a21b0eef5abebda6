"""The placeholder tokens of an image: one in the text that a chat template writes, many in what the model reads.

    rendered    <|vision_start|> <|image_pad|> <|vision_end|> What is it?
    expanded    <|vision_start|> <|image_pad|> x 4 <|vision_end|> What is it?      an image of 56 x 56 pixels

The policy gets the expanded tokens; vLLM gets those with one placeholder an image, and expands them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_rl.data.images import read_size
from slurm_rl.errors import DataError
from slurm_rl.math.sequences import ImageSpan


class ImageCounter(Protocol):
    """What is known of a model's images without their pixels."""

    @property
    def image_token_id(self) -> int:
        """The placeholder."""

    def count_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of an image of (width, height) pixels; ValueError when it cannot be one."""


def expand_placeholders(
    token_ids: Sequence[int], sources: Sequence[str], counter: ImageCounter, where: str
) -> tuple[list[int], list[ImageSpan]]:
    """The tokens with as many placeholders as each image needs, and where they are.

    Raises:
        DataError: an image cannot be read, or there are not as many placeholders as images.
    """
    found = list(token_ids).count(counter.image_token_id)
    if found != len(sources):
        raise DataError(
            f"{where}: the rendered prompt must have one image placeholder for each image",
            seen=f"{found} placeholders and {len(sources)} images",
            action="set data.chat_template=true with the template of a vision-language model, and take "
            "placeholders out of the text of the row",
        )
    remaining = iter(sources)
    expanded: list[int] = []
    spans: list[ImageSpan] = []
    for token in token_ids:
        count = 1
        if token == counter.image_token_id:
            source = next(remaining)
            count = _count(source, counter, where)
            spans.append(ImageSpan(source=source, start=len(expanded), num_tokens=count))
        expanded += [token] * count
    return expanded, spans


def collapse_placeholders(token_ids: Sequence[int], spans: Sequence[ImageSpan]) -> list[int]:
    """The tokens with one placeholder for each image.

    >>> collapse_placeholders([1, 5, 5, 5, 2], [ImageSpan(source="1.jpg", start=1, num_tokens=3)])
    [1, 5, 2]
    """
    collapsed: list[int] = []
    position = 0
    for span in spans:
        collapsed += token_ids[position : span.start + 1]
        position = span.start + span.num_tokens
    return [*collapsed, *token_ids[position:]]


def _count(source: str, counter: ImageCounter, where: str) -> int:
    size = read_size(source, where)
    try:
        return counter.count_tokens(size)
    except ValueError as error:
        raise DataError(
            f"{where}: the model's image processor must accept the image ({error})",
            seen=f"{size[0]} x {size[1]} pixels",
            action="take the row out",
        ) from None
