"""Reads prompts from a .jsonl file: one JSON object a line, with a prompt and its reference answer.

    {"prompt": "3+4=", "answer": "7"}
    {"prompt": [{"role": "user", "content": "What is 3+4?"}], "answer": "7"}

What is wrong is named with its line; no row is repaired or left out in silence. UTF-8 with or
without a byte order mark and both line ends are read; any other encoding is an error.
"""

from __future__ import annotations

import codecs
import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import DataError
from slurm_rl.train.data.messages import Message, is_messages, parse_prompt

_WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """One prompt before it is tokenized."""

    index: int
    """Position among the rows of its source, from 0; stays when rows are held out."""
    prompt: str | list[Message]
    """Image parts of messages name where the image is; its pixels are read when a batch is made."""
    answer: str


def load_rows(path: str | Path, prompt_key: str, answer_key: str, image_key: str | None = None) -> list[PromptRow]:
    """Read every row of a .jsonl file; blank lines are passed over.

    Raises:
        DataError: the file cannot be read or is empty, or a line is not a row (named `file:line`).
    """
    path = Path(path)
    rows: list[PromptRow] = []
    for number, line in _lines(path):
        where = f"{path}:{number}"
        row = _parse_object(line, where)
        images = None if image_key is None else row.get(image_key)
        if prompt_key in row:
            row[prompt_key] = parse_prompt(row[prompt_key], images, path.parent, where)
        rows.append(_build_row(row, len(rows), prompt_key, answer_key, where))
    if not rows:
        raise DataError(
            f"{path}: a data file needs at least one row", seen="none", action="write one JSON object a line"
        )
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of the lines that are not blank."""
    try:
        # Bytes end at \n alone; as text, a line would also end at characters JSON strings may hold.
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                text = _decode(raw, path, number)
                if text.strip():
                    yield number, text
    except OSError as error:
        raise DataError(
            "a data file must be readable",
            seen=f"{path} ({error.strerror})",
            action="set data.train or data.eval to a .jsonl file that exists on every node",
        ) from None


def _decode(raw: bytes, path: Path, number: int) -> str:
    if number == 1:
        wide = next((name for mark, name in _WIDE.items() if raw.startswith(mark)), None)
        if wide or b"\0" in raw:
            name = wide or "UTF-16"
            raise DataError(
                f"{path}: a data file must be UTF-8",
                seen=f"{name} (by its {'byte order mark' if wide else 'zero bytes'})",
                action=f"iconv -f {name} -t UTF-8 {path} > utf8.jsonl",
            )
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: a data file must be UTF-8",
            seen=f"byte 0x{raw[error.start]:02x} at column {error.start + 1}",
            action="convert the file with iconv -f <its encoding> -t UTF-8",
        ) from None


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(
            f"{where}: a line must be JSON ({error})", seen=_shorten(line.strip()), action="correct the line"
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: a line must be one JSON object",
            seen=f"{type(value).__name__} {_shorten(line.strip())}",
            action="write one object a line (jq -c '.[]' turns an array into that)",
        )
    return value


def _build_row(row: dict[str, Any], index: int, prompt_key: str, answer_key: str, where: str) -> PromptRow:
    prompt = _require(row, prompt_key, "data.prompt_key", where)
    answer = _require(row, answer_key, "data.answer_key", where)
    if not isinstance(answer, str):
        raise DataError(
            f"{where}: {answer_key!r} must be a string",
            seen=f"{type(answer).__name__} {_shorten(repr(answer))}",
            action="write it in quotes, or set data.answer_key to the column with the answer",
        )
    if not _is_prompt(prompt):
        raise DataError(
            f"{where}: {prompt_key!r} must be text or a list of messages, each with role and content, and not empty",
            seen=f"{type(prompt).__name__} {_shorten(repr(prompt))}",
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
    return is_messages(prompt)


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "..."
