"""Placeholder tokens of images, and characters that tokenization loses.

    rendered    <|vision_start|> <|image_pad|> <|vision_end|> Describe it.
    expanded    <|vision_start|> <|image_pad|> x 4 <|vision_end|> Describe it.      an image of 56 x 56 pixels

The policy reads the expanded tokens; vLLM gets one placeholder per image and expands them itself.

Lost characters are found from the offsets of the tokens: decoders add spaces and normalizers compose accents, so
decoded text would not be comparable.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.data.images import read_size
from slurm_rl.data.prompts import show_characters
from slurm_rl.errors import DataError


class ImageCounter(Protocol):
    """Facts about a model's images that need no pixels."""

    @property
    def image_token_id(self) -> int:
        """The placeholder."""

    def count_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of an image of (width, height) pixels; ValueError when it cannot be one."""


def expand_placeholders(
    token_ids: Sequence[int], sources: Sequence[str], counter: ImageCounter, where: str
) -> tuple[list[int], list[ImageSpan]]:
    """Return the tokens with as many placeholders as each image needs, and the spans; raise DataError if placeholders
    and images do not match."""
    found = list(token_ids).count(counter.image_token_id)
    if found != len(sources):
        raise DataError(
            f"{where}: the rendered prompt must have one image placeholder for each image",
            seen=f"{found} placeholders and {len(sources)} images",
            action=(
                "set data.chat_template=true with the template of a vision-language model, and remove "
                "placeholders from the text"
            ),
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
    """Return the tokens with one placeholder for each image.

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


def find_lost_characters(
    text: str, token_ids: Sequence[int], spans: Sequence[tuple[int, int]] | None, tokenizer: Any
) -> str:
    """Return the characters that became the unknown token or no token, for a message; spaces do not count.

    Args:
        token_ids: [L] the encoding of `text`.
        spans: [L] (start, end) in `text` of each token; None from a slow tokenizer.
    """
    if spans is None:
        unknown = tokenizer.unk_token_id in token_ids and tokenizer.unk_token not in text
        return "an unknown token" if unknown else ""
    lost = _find_uncovered(text, token_ids, spans, tokenizer)
    if lost and (composed := unicodedata.normalize("NFC", text)) != text:
        # A tokenizer that composes (e, accent) to one character counts the accent to no token.
        ours, theirs = (tokenizer([t], add_special_tokens=False, return_offsets_mapping=True) for t in (composed, text))
        [ids], [spans] = ours["input_ids"], ours["offset_mapping"]
        if [ids] == theirs["input_ids"]:
            lost = _find_uncovered(composed, ids, spans, tokenizer)
    return show_characters(lost)


def _find_uncovered(text: str, token_ids: Sequence[int], spans: Sequence[tuple[int, int]], tokenizer: Any) -> list[str]:
    """Return the characters of `text`, spaces aside, in no span of a known token."""
    kept = [False] * len(text)
    for token_id, (start, end) in zip(token_ids, spans, strict=True):
        # A text may spell the unknown token out; many models use one token for unknown and end of text.
        if token_id != tokenizer.unk_token_id or text[start:end] == tokenizer.unk_token:
            kept[start:end] = [True] * (end - start)
    return [c for c, is_kept in zip(text, kept, strict=True) if not is_kept and not c.isspace()]


def find_refused_characters(text: str, tokenizer: Any) -> str:
    """Return the characters that the tokenizer raises on, for a message; "" when there are none."""
    return show_characters(c for c in dict.fromkeys(text) if not _encodes(c, tokenizer))


def _encodes(text: str, tokenizer: Any) -> bool:
    try:
        tokenizer(text)
    except Exception:  # Rust tokenizers raise bare Exception
        return False
    return True
