"""Which characters of a text its tokens do not hold.

Comparing the text with its decoding would not do: decoders add a leading space, normalisers write
an accent as one code point for two. What each token was made from tells it exactly.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

_SHOWN = 10


def find_lost_characters(
    text: str, token_ids: Sequence[int], spans: Sequence[tuple[int, int]] | None, tokenizer: Any
) -> str:
    """Return the lost characters for a message; "" when there are none.

    A character is lost when it became the unknown token, or when no token was made from it. Spaces
    are let be, since many tokenizers leave them out of a span that holds them.

    Args:
        token_ids: [L] the encoding of `text`.
        spans: [L] (start, end) in `text` of each token, end exclusive; None from a slow tokenizer,
            which only shows that there is an unknown token.
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
    return _show(lost)


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
    return _show(c for c in dict.fromkeys(text) if not _encodes(c, tokenizer))


def _encodes(text: str, tokenizer: Any) -> bool:
    try:
        tokenizer(text)
    except Exception:  # Rust tokenizers raise bare Exception
        return False
    return True


def _show(characters: Iterable[str]) -> str:
    return ", ".join(map(ascii, list(dict.fromkeys(characters))[:_SHOWN]))
