"""Rows that hold their answers: conversations to imitate, and pairs of a better and a worse answer.

    {"messages": [{"role": "user", "content": "3+4?"}, {"role": "assistant", "content": "7"}]}      sft
    {"prompt": "3+4=", "answer": "7"}                                                               sft
    {"prompt": "3+4=", "chosen": "7", "rejected": "8"}                                              rm, dpo
    {"chosen": [...messages...], "rejected": [...messages...]}      the prompt is what both begin with

What is wrong is named with its line, as for prompts.
"""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slurm_rl.config.data import DataConfig
from slurm_rl.errors import DataError
from slurm_rl.train.data.addition import build_addition_rows
from slurm_rl.train.data.lines import parse_object as _parse_object
from slurm_rl.train.data.lines import read_lines as _lines
from slurm_rl.train.data.lines import shorten as _shorten
from slurm_rl.train.data.prompts import Message
from slurm_rl.train.data.prompts import _parse_prompt as _is_prompt

Text = str | list[Message]
"""Plain text, or chat messages."""


@dataclass(frozen=True, kw_only=True)
class AnswerRow:
    """A prompt and what to say to it; messages may hold several turns of the assistant."""

    index: int
    prompt: Text
    """May be no messages at all, when `answer` is the whole conversation."""
    answer: Text


@dataclass(frozen=True, kw_only=True)
class PairRow:
    """A prompt with a better and a worse answer."""

    index: int
    prompt: Text
    chosen: Text
    rejected: Text
    margin: float = 0.0


Row = TypeVar("Row", AnswerRow, PairRow)


def load_answers(config: DataConfig, seed: int) -> tuple[list[AnswerRow], list[AnswerRow]]:
    """Return (train rows, eval rows) for sft; the same for the same config, files and seed.

    Raises:
        DataError: a row without a conversation or an answer, an empty turn of the assistant, ... with its line.
    """

    def build(row: dict[str, Any], index: int, where: str) -> AnswerRow:
        return parse_answer(row, index, where, config)

    additions = [AnswerRow(index=r.index, prompt=r.prompt, answer=r.answer) for r in _additions(config, seed)]
    return _load(config, seed, additions, build)


def load_pairs(config: DataConfig, seed: int) -> tuple[list[PairRow], list[PairRow]]:
    """Return (train rows, eval rows) for rm and dpo; the same for the same config, files and seed.

    Raises:
        DataError: a row without chosen or rejected, an equal pair, ... with its line.
    """

    def build(row: dict[str, Any], index: int, where: str) -> PairRow:
        return parse_pair(row, index, where, config)

    additions = _additions(config, seed)
    wrong = [_spoil(row.answer, config.largest_addend, f"{seed} {row.index}") for row in additions]
    pairs = [
        PairRow(index=row.index, prompt=row.prompt, chosen=row.answer, rejected=rejected)
        for row, rejected in zip(additions, wrong, strict=True)
    ]
    return _load(config, seed, pairs, build)


def parse_answer(row: dict[str, Any], index: int, where: str, config: DataConfig) -> AnswerRow:
    """One row for sft."""
    if config.messages_key not in row and config.input_key in row and (config.label_key or "answer") in row:
        prompt, answer = row[config.input_key], row[(config.label_key or "answer")]
        _require_text(prompt, config.input_key, where)
        _require_answer(answer, (config.label_key or "answer"), where)
        return AnswerRow(index=index, prompt=prompt, answer=answer)
    messages = _require(row, config.messages_key, "data.messages_key", where)
    if not isinstance(messages, list):
        raise _wrong(where, config.messages_key, "a list of messages", messages)
    _require_answer(messages, config.messages_key, where)
    return AnswerRow(index=index, prompt=[], answer=messages)


def parse_pair(row: dict[str, Any], index: int, where: str, config: DataConfig) -> PairRow:
    """One row for rm and dpo."""
    chosen = _require(row, config.chosen_key, "data.chosen_key", where)
    rejected = _require(row, config.rejected_key, "data.rejected_key", where)
    for key, value in ((config.chosen_key, chosen), (config.rejected_key, rejected)):
        _require_answer(value, key, where)
    if chosen == rejected:
        raise DataError(
            f"{where}: {config.chosen_key!r} and {config.rejected_key!r} must differ",
            seen=_shorten(repr(chosen)),
            action="take the row out: an equal pair teaches nothing",
        )
    prompt: Text
    if config.input_key in row:
        prompt = row[config.input_key]
        _require_text(prompt, config.input_key, where)
    else:
        prompt, chosen, rejected = _split_shared(chosen, rejected, where, config)
    return PairRow(
        index=index, prompt=prompt, chosen=chosen, rejected=rejected, margin=_read_margin(row, where, config)
    )


def _split_shared(chosen: Text, rejected: Text, where: str, config: DataConfig) -> tuple[Text, Text, Text]:
    """The messages that both begin with, and the rest of each."""
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(
            f"{where}: answers that are plain text need the key {config.input_key!r} (data.input_key)",
            seen=_shorten(repr(chosen)),
            action="add the prompt, or write both answers as messages",
        )
    count = 0
    while count < min(len(chosen), len(rejected)) and chosen[count] == rejected[count]:
        count += 1
    prompt, rests = chosen[:count], (chosen[count:], rejected[count:])
    for key, rest in zip((config.chosen_key, config.rejected_key), rests, strict=True):
        if not any(message["role"] == "assistant" for message in rest):
            raise DataError(
                f"{where}: {key!r} must end with a turn of the assistant that the other answer does not have",
                seen=_shorten(repr(rest)),
                action="correct the row",
            )
    return prompt, *rests


def _read_margin(row: dict[str, Any], where: str, config: DataConfig) -> float:
    if config.margin_key is None:
        return 0.0
    margin = _require(row, config.margin_key, "data.margin_key", where)
    if isinstance(margin, bool) or not isinstance(margin, (int, float)):
        raise _wrong(where, config.margin_key, "a number", margin)
    return float(margin)


def _require(row: dict[str, Any], key: str, option: str, where: str) -> Any:
    if key in row:
        return row[key]
    nearest = difflib.get_close_matches(key, list(row), n=1, cutoff=0.0)
    raise DataError(
        f"{where}: the row must have the key {key!r} ({option})",
        seen=f"the keys {', '.join(map(repr, row)) or '(none)'}",
        action=f"set {option}={nearest[0]}, or another of them" if nearest else "correct the row",
    )


def _require_text(value: Any, key: str, where: str) -> None:
    if not _is_prompt(value):
        raise _wrong(where, key, "text or a list of messages, each with role and content, and not empty", value)


def _require_answer(value: Any, key: str, where: str) -> None:
    """Text that is not blank, or messages of which some are the assistant's, and none of those blank."""
    if isinstance(value, str) and value.strip():
        return
    if isinstance(value, str) or not _is_prompt(value):
        raise _wrong(where, key, "text or a list of messages, each with role and content, and not empty", value)
    turns = [(n, message) for n, message in enumerate(value) if message["role"] == "assistant"]
    if not turns:
        raise _wrong(where, key, "messages with a turn of the assistant", value)
    for number, message in turns:
        content = message["content"]
        if not content or (isinstance(content, str) and not content.strip()):
            raise DataError(
                f"{where}: a turn of the assistant must say something",
                seen=f"message {number + 1} of {key!r} with the content {content!r}",
                action="correct the row, or take it out",
            )


def _wrong(where: str, key: str, wanted: str, value: Any) -> DataError:
    return DataError(
        f"{where}: {key!r} must be {wanted}",
        seen=f"{type(value).__name__} {_shorten(repr(value))}",
        action="correct the row, or name another column in the data section",
    )


def _additions(config: DataConfig, seed: int) -> list[Any]:
    return build_addition_rows(config.largest_addend, seed) if config.train == "addition" else []


def _spoil(answer: str, largest_addend: int, place: str) -> str:
    """Another sum of the same range."""
    chance = random.Random(f"rejected {place}")
    wrong = chance.randrange(2 * largest_addend)
    return str(wrong + (wrong >= int(answer)))


def _load(
    config: DataConfig, seed: int, additions: list[Row], build: Callable[[dict[str, Any], int, str], Row]
) -> tuple[list[Row], list[Row]]:
    rows = additions if config.train == "addition" else _read(config.train, build)
    if config.eval is not None:
        return rows, _read(config.eval, build)[: config.num_eval]
    return _hold_out(rows, config.num_eval, seed)


def _read(path: str | Path, build: Callable[[dict[str, Any], int, str], Row]) -> list[Row]:
    rows: list[Row] = []
    for number, line in _lines(Path(path)):
        where = f"{path}:{number}"
        rows.append(build(_parse_object(line, where), len(rows), where))
    if not rows:
        raise DataError(
            f"{path}: a data file needs at least one row", seen="none", action="write one JSON object a line"
        )
    return rows


def _hold_out(rows: Sequence[Row], num_eval: int, seed: int) -> tuple[list[Row], list[Row]]:
    """As `load.py` holds prompts out: a prompt that is held out is in no row that stays."""
    if num_eval >= len(rows):
        raise _too_few(num_eval, f"{len(rows)} rows")
    chosen = set(random.Random(f"hold out {seed}").sample(range(len(rows)), num_eval))
    held_out = [row for position, row in enumerate(rows) if position in chosen]
    taken = {_identity(row) for row in held_out}
    train = [row for row in rows if _identity(row) not in taken]
    if not train:
        raise _too_few(num_eval, f"{len(rows)} rows, of which none differs from the ones held out")
    return train, held_out


def _too_few(num_eval: int, seen: str) -> DataError:
    return DataError(
        f"data.num_eval = {num_eval} rows are held out, so data.train needs more than that",
        seen=seen,
        action="lower data.num_eval, or name a file in data.eval",
    )


def _identity(row: AnswerRow | PairRow) -> str:
    """The prompt; of a whole conversation, all of it."""
    whole = isinstance(row, AnswerRow) and not row.prompt
    return json.dumps(row.answer if whole and isinstance(row, AnswerRow) else row.prompt, sort_keys=True)


def require_one_batch(num_rows: int, batch_size: int) -> None:
    """Raise DataError when the rows to train on do not fill one batch."""
    if num_rows < batch_size:
        raise DataError(
            "the rows to train on must fill one batch of supervised.batch_size",
            seen=f"{num_rows} rows < {batch_size}",
            action=f"set supervised.batch_size={num_rows} or lower, or add rows",
        )
