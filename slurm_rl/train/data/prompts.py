"""Reads prompts from a .jsonl file: one JSON object a line, with a prompt and its reference answer.

    {"prompt": "3+4=", "answer": "7"}
    {"prompt": [{"role": "user", "content": "What is 3+4?"}], "answer": "7"}

What is wrong is named with its line; no row is repaired or left out in silence.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from slurm_rl.errors import DataError
from slurm_rl.train.data.lines import parse_object, read_lines, shorten

Message: TypeAlias = dict[str, Any]
"""A chat message: `role` and `content`, and whatever else the chat template reads."""


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """One prompt before it is tokenized."""

    index: int
    """Position among the rows of its source, from 0; stays when rows are held out."""
    prompt: str | list[Message]
    answer: str


def load_rows(path: str | Path, prompt_key: str, answer_key: str) -> list[PromptRow]:
    """Read every row of a .jsonl file; blank lines are passed over.

    Raises:
        DataError: the file cannot be read or is empty, or a line is not a row (named `file:line`).
    """
    path = Path(path)
    rows: list[PromptRow] = []
    for number, line in read_lines(path):
        row = parse_object(line, f"{path}:{number}")
        rows.append(_build_row(row, len(rows), prompt_key, answer_key, f"{path}:{number}"))
    if not rows:
        raise DataError(
            f"{path}: a data file needs at least one row", seen="none", action="write one JSON object a line"
        )
    return rows


def _build_row(row: dict[str, Any], index: int, prompt_key: str, answer_key: str, where: str) -> PromptRow:
    prompt = _require(row, prompt_key, "data.prompt_key", where)
    answer = _require(row, answer_key, "data.answer_key", where)
    if not isinstance(answer, str):
        raise DataError(
            f"{where}: {answer_key!r} must be a string",
            seen=f"{type(answer).__name__} {shorten(repr(answer))}",
            action="write it in quotes, or set data.answer_key to the column with the answer",
        )
    if not _is_prompt(prompt):
        raise DataError(
            f"{where}: {prompt_key!r} must be text or a list of messages, each with role and content, and not empty",
            seen=f"{type(prompt).__name__} {shorten(repr(prompt))}",
            action="correct the row, or set data.prompt_key to the column with the prompt",
        )
    return PromptRow(index=index, prompt=prompt, answer=answer)


def _require(row: dict[str, Any], key: str, option: str, where: str) -> Any:
    if key in row:
        return row[key]
    nearest = difflib.get_close_matches(key, list(row), n=1, cutoff=0.0)
    raise DataError(
        f"{where}: the row must have the key {key!r} ({option})",
        seen=f"the keys {', '.join(map(repr, row)) or '(none)'}",
        action=f"set {option}={nearest[0]}, or another of them" if nearest else "correct the row",
    )


def _is_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return prompt != ""
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in prompt)
