"""Check rows against a tokenizer: characters that it cannot write, and prompts of too many tokens."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import PromptRow
from slurm_rl.errors import DataError

_SHOWN = 10


def check_characters(rows: Iterable[PromptRow], vocabulary: str, *, longest: int | None, with_answers: bool) -> None:
    """Check rows against a vocabulary of one token per character, as of the tiny model, without a tokenizer.

    Args:
        longest: limit for a prompt in tokens, or None.
        with_answers: the answers are tokenized too (warm-up).
    """
    known = set(vocabulary)
    for row in rows:
        # Messages need a chat template, which the tiny model has none of; the error of that is another's.
        prompts = [row.prompt] if isinstance(row.prompt, str) else []
        for text in [*prompts, row.answer] if with_answers else prompts:
            if not known.issuperset(text):
                refuse_lost(row.name, text, show_characters(c for c in text if c not in known))
        for text in prompts:
            if longest is not None and len(text) > longest:
                raise too_long(row.name, text, len(text), longest)


def refuse_lost(name: str, text: str, lost: str) -> None:
    """Raise DataError where characters of a row's text are lost; `lost` shows them, "" when there are none."""
    if lost:
        raise DataError(
            f"{name}: the tokenizer must be able to write every character",
            seen=f"{lost} in {shorten(text)!r}",
            action="take the characters out of the data, or choose a model whose tokenizer knows them; "
            "the tiny model knows those of model.tiny.characters",
        )


def too_long(name: str, text: str, num_tokens: int, longest: int) -> DataError:
    return DataError(
        f"{name}: a prompt must fit in data.max_prompt_tokens = {longest}",
        seen=f"{num_tokens} tokens, {shorten(text)!r}",
        action=f"raise data.max_prompt_tokens to {num_tokens}, or set data.overlong_prompts=leave_out",
    )


def show_characters(characters: Iterable[str]) -> str:
    """The first few different ones, for a message; "" when there are none."""
    return ", ".join(map(ascii, list(dict.fromkeys(characters))[:_SHOWN]))
