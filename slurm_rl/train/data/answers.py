"""Rows that hold their answers: conversations to imitate, and pairs of a better and a worse answer.

    {"messages": [{"role": "user", "content": "3+4?"}, {"role": "assistant", "content": "7"}]}      sft
    {"prompt": "3+4=", "answer": "7"}                                                               sft
    {"prompt": "3+4=", "chosen": "7", "rejected": "8"}                                              rm, dpo
    {"chosen": [...messages...], "rejected": [...messages...]}      the prompt is what both begin with
    {"messages": [...], "images": ["1.png"]}                        with data.image_key=images

What is wrong is named with its line, as for prompts.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from slurm_rl.config.data import DataConfig
from slurm_rl.errors import DataError
from slurm_rl.train.data.addition import build_addition_rows
from slurm_rl.train.data.hold_out import hold_out
from slurm_rl.train.data.image_parts import Folders, place_images
from slurm_rl.train.data.lines import shorten
from slurm_rl.train.data.prompts import Message, find_images, parse_prompt
from slurm_rl.train.data.records import DataSource, read_records, require_columns

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
    label = config.label_key
    if row.get(config.messages_key) is None and label is not None and {config.input_key, label} <= row.keys():
        prompt = _with_images(_read_text(row[config.input_key], config.input_key, where), row, where, config)
        return AnswerRow(index=index, prompt=prompt, answer=_read_answer(row[label], label, where))
    messages = _read_answer(_require(row, config.messages_key, "data.messages_key", where), config.messages_key, where)
    if isinstance(messages, str):
        raise _wrong(where, config.messages_key, "a list of messages", messages)
    return AnswerRow(index=index, prompt=[], answer=_with_images(messages, row, where, config))


def parse_pair(row: dict[str, Any], index: int, where: str, config: DataConfig) -> PairRow:
    """One row for rm and dpo."""
    keys = {"data.chosen_key": config.chosen_key, "data.rejected_key": config.rejected_key}
    values = {option: _require(row, key, option, where) for option, key in keys.items()}
    chosen, rejected = (_read_answer(values[option], key, where) for option, key in keys.items())
    if chosen == rejected:
        raise DataError(
            f"{where}: {config.chosen_key!r} and {config.rejected_key!r} must differ",
            seen=shorten(repr(chosen)),
            action="take the row out: an equal pair teaches nothing",
        )
    prompt: Text
    if row.get(config.input_key) is not None:
        prompt = _with_images(_read_text(row[config.input_key], config.input_key, where), row, where, config)
    else:
        if not isinstance(chosen, str) and not isinstance(rejected, str):
            chosen, rejected = (_with_images(answer, row, where, config) for answer in (chosen, rejected))
        prompt, chosen, rejected = _split_shared(chosen, rejected, where, config)
    return PairRow(
        index=index, prompt=prompt, chosen=chosen, rejected=rejected, margin=_read_margin(row, where, config)
    )


def _with_images(text: Text, row: dict[str, Any], where: str, config: DataConfig) -> Text:
    """With those of the image column in their places."""
    key = config.image_key
    return text if key is None else place_images(text, _require(row, key, "data.image_key", where), where)


def _require(row: dict[str, Any], key: str, option: str, where: str) -> Any:
    require_columns(DataSource(name=where, columns=((key, option),)), list(row), where)
    return row[key]


def _split_shared(chosen: Text, rejected: Text, where: str, config: DataConfig) -> tuple[Text, Text, Text]:
    """The messages that both begin with, and the rest of each."""
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(
            f"{where}: answers that are plain text need the column {config.input_key!r} (data.input_key)",
            seen=shorten(repr(chosen)),
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
                seen=shorten(repr(rest)),
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


def _read_text(value: Any, key: str, where: str) -> Text:
    text = parse_prompt(value)
    if text is None:
        raise _wrong(where, key, "text or a list of messages, each with role and content, and not empty", value)
    return text


def _read_answer(value: Any, key: str, where: str) -> Text:
    """Text that is not blank, or messages of which some are the assistant's, and none of those blank."""
    answer = _read_text(value.strip() and value if isinstance(value, str) else value, key, where)
    if isinstance(answer, str):
        return answer
    turns = [(n, message) for n, message in enumerate(answer) if message["role"] == "assistant"]
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
    return answer


def _wrong(where: str, key: str, wanted: str, value: Any) -> DataError:
    return DataError(
        f"{where}: {key!r} must be {wanted}",
        seen=f"{type(value).__name__} {shorten(repr(value))}",
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
    rows = additions if config.train == "addition" else _read(config, config.train, config.train_split, build)
    if config.eval is not None:
        return rows, _read(config, config.eval, config.eval_split, build)[: config.num_eval]
    return hold_out(rows, config.num_eval, seed, _identity)


def _read(config: DataConfig, name: str, split: str, build: Callable[[dict[str, Any], int, str], Row]) -> list[Row]:
    answers: list[str | None] = [config.label_key, config.messages_key, config.chosen_key, config.rejected_key]
    named = [config.input_key, *answers, config.margin_key, config.image_key]
    optional = tuple(dict.fromkeys(key for key in named if key is not None))
    source = DataSource(name=name, columns=(), subset=config.subset, split=split, optional=optional)
    rows, folders = [], Folders()
    for index, (where, record) in enumerate(read_records(source)):
        rows.append(build(record, index, where))
        for text in texts_of(rows[-1]):
            find_images(text, source.folder, folders, where)
    if not rows:
        raise DataError(f"{name}: a data file needs at least one row", seen="none", action="write one, or name another")
    return rows


def texts_of(row: AnswerRow | PairRow) -> list[Text]:
    """All that is said in a row."""
    return [row.prompt, row.answer] if isinstance(row, AnswerRow) else [row.prompt, row.chosen, row.rejected]


def _identity(row: AnswerRow | PairRow) -> str:
    """The prompt; of a whole conversation, all of it."""
    whole = isinstance(row, AnswerRow) and not row.prompt
    # Images inside the rows by their checksum.
    return json.dumps(
        row.answer if whole and isinstance(row, AnswerRow) else row.prompt,
        sort_keys=True,
        default=lambda value: hashlib.sha256(value).hexdigest(),
    )


def require_one_batch(num_rows: int, batch_size: int) -> None:
    """Raise DataError when the rows to train on do not fill one batch."""
    if num_rows < batch_size:
        raise DataError(
            "the rows to train on must fill one batch of supervised.batch_size",
            seen=f"{num_rows} rows < {batch_size}",
            action=f"set supervised.batch_size={num_rows} or lower, or add rows",
        )
