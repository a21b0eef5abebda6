"""Load the rows to train on and to evaluate on, for each task.

A run resumes only with the rows it began with: its data position depends on them. A user who corrected or removed a row
accepts the rows as they are now, and prompts.json records it.
"""

from __future__ import annotations

import hashlib
import json
import random
import shlex
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_rl.config.data import DataConfig
from slurm_rl.data.chat import as_messages
from slurm_rl.data.prompts import PromptRow, Row, SourceRow, build_rows, load_rows
from slurm_rl.data.records import DataSource
from slurm_rl.data.split import Split, digest_prompts, draw_rows, split_rows
from slurm_rl.errors import DataError
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

if TYPE_CHECKING:
    from slurm_rl.data.answers import AnswerRow, PairRow
    from slurm_rl.data.tokenize import EncodedPrompt  # which needs numpy; a login node checks rows without

_LARGEST = 999
"""A million rows; every row is kept in memory."""


def build_addition_rows(largest_addend: int) -> list[PromptRow]:
    """Return all (largest_addend + 1)^2 ordered pairs, in order.

    >>> build_addition_rows(0)
    [PromptRow(index=0, where='', prompt='0+0=', answer='0', info={})]
    """
    if largest_addend > _LARGEST:
        raise DataError(
            f"data.largest_addend must be <= {_LARGEST}, since every pair is kept in memory",
            seen=f"{largest_addend} ({(largest_addend + 1) ** 2} pairs)",
            action=f"set data.largest_addend={_LARGEST}, or write a .jsonl file",
        )
    numbers = range(largest_addend + 1)
    pairs = [(a, b) for a in numbers for b in numbers]
    return [PromptRow(index=i, prompt=f"{a}+{b}=", answer=str(a + b)) for i, (a, b) in enumerate(pairs)]


def spoil_sum(row: PromptRow, largest_addend: int) -> str:
    """Another sum of the same range, the same for every run."""
    wrong = random.Random(f"rejected {row.prompt}").randrange(2 * largest_addend)
    return str(wrong + (wrong >= int(row.answer)))


Read = Callable[[str, str], list[Row]]


def load_prompts(config: DataConfig, *, with_info: bool = False) -> Split[PromptRow]:
    """Load the rows for grpo; `with_info` also reads the columns for an environment."""
    return _load(config, _additions(config), lambda name, split: load_rows(name, config, split, with_info=with_info))


def load_set(config: DataConfig, num_rows: int | None, *, with_info: bool = False) -> list[PromptRow]:
    """Load all rows of data.train in order, or `num_rows` with different prompts, by rank."""
    rows = _additions(config) or load_rows(config.train, config, config.train_split, with_info=with_info)
    if num_rows is None or num_rows >= len(rows):
        return rows
    folder = DataSource(name=config.train, columns=()).folder
    return draw_rows(rows, [_digest(row, folder) for row in rows], num_rows)


def load_answers(config: DataConfig) -> Split[AnswerRow]:
    from slurm_rl.data.answers import AnswerRow, parse_answer

    keys = (config.input_key, config.label_key, config.messages_key, config.tools_key)
    additions = [AnswerRow(index=r.index, prompt=r.prompt, answer=r.answer) for r in _additions(config)]
    return _load(config, additions, _reader(config, keys, parse_answer))


def load_pairs(config: DataConfig) -> Split[PairRow]:
    from slurm_rl.data.answers import PairRow, parse_pair

    keys = (config.input_key, config.chosen_key, config.rejected_key, config.margin_key, config.tools_key)
    additions = [
        PairRow(index=r.index, prompt=r.prompt, chosen=r.answer, rejected=spoil_sum(r, config.largest_addend))
        for r in _additions(config)
    ]
    return _load(config, additions, _reader(config, keys, parse_pair))


def _load(config: DataConfig, additions: list[Row], read: Read[Row]) -> Split[Row]:
    rows = additions or read(config.train, config.train_split)
    evals = None if config.eval is None else read(config.eval, config.eval_split)
    # One folder for both, or an image of one would pass for that of the same name of the other.
    folder = DataSource(name=str(config.train), columns=()).folder
    return split_rows(rows, evals, config.num_eval, partial(_digest, folder=folder))


def _additions(config: DataConfig) -> list[PromptRow]:
    return build_addition_rows(config.largest_addend) if config.train == "addition" else []


def _reader(config: DataConfig, keys: Sequence[str | None], parse: Callable[..., Row]) -> Read[Row]:
    """Rows with answers have their columns in several ways, so none of them must be there."""
    wanted = tuple(dict.fromkeys(key for key in (*keys, config.image_key) if key is not None))
    source = partial(DataSource, columns=(), subset=config.subset, revision=config.revision, optional=wanted)
    return lambda name, split: build_rows(source(name=name, split=split), partial(parse, config=config))


def _digest(row: SourceRow, folder: Path | None) -> list[bytes]:
    prompt, *answers = row.texts
    answer = answers[0] if answers and not isinstance(answers[0], str) else []
    return digest_prompts(as_messages(prompt), answer, folder)


def require_one_batch(num_rows: int, batch_size: int) -> None:
    if num_rows < batch_size:
        raise DataError(
            "the rows to train on must fill one batch of supervised.batch_size",
            seen=f"{num_rows} rows < {batch_size}",
            action=f"set supervised.batch_size={num_rows} or lower, or add rows",
        )


def check_same_rows(run: RunDir, num_train: int, num_held_out: int, contents: Iterable[bytes]) -> None:
    """Record number and checksum of the rows the first time; later raise DataError if they changed.

    Args:
        contents: tokenized content of each training row, then of each held-out row.
    """
    seen = {"num_train": num_train, "num_eval": num_held_out, "sha256": digest_rows(contents)}
    if not run.prompts.is_file():
        if any(run.checkpoints.glob("step-*")):
            raise DataError(
                "a run resumes with its original rows, which are recorded at its start",
                seen=f"checkpoints and no {run.prompts.name} in {run.path}: an earlier version started this run",
                action=_next_action(run),
            )
        write_json(run.prompts, seen)
        return
    expected = read_json(run.prompts)
    replaced = expected.pop(_REPLACED, [])
    if not expected:  # accepted by `accept_new_rows`
        write_json(run.prompts, {**seen, _REPLACED: replaced})
    elif expected != seen:
        raise DataError(
            "a run resumes with its original rows: data, tokenizer, chat template and held-out rows must be unchanged",
            seen=f"{_show(seen)} in place of {_show(expected)}",
            action=_next_action(run),
        )


def _next_action(run: RunDir) -> str:
    command = f"python -m slurm_rl resume {shlex.quote(str(run.path))} --accept-new-rows"
    return f"restore the old data, tokenizer and slurm_rl, or continue with the current rows: {command}"


_REPLACED = "replaced"
"""Key of prompts.json: the rows before each acceptance, oldest first."""


def accept_new_rows(run: RunDir) -> None:
    """Let the next attempt continue with changed rows, and keep a record of the old ones.

    The order depends on the number of rows: with another number, rows of the current epoch may be repeated or left out.
    """
    until_now = read_json(run.prompts) if run.prompts.is_file() else {}
    replaced = until_now.pop(_REPLACED, [])
    write_json(run.prompts, {_REPLACED: [*replaced, *([until_now] if until_now else [])]})


def knows_rows(run: RunDir, rows: dict[str, object]) -> bool:
    """Return whether the run uses these rows of another prompts.json, or used them before new ones were accepted."""
    ours = read_json(run.prompts)
    plain = {key: value for key, value in rows.items() if key != _REPLACED}
    return plain in ({key: value for key, value in ours.items() if key != _REPLACED}, *ours.get(_REPLACED, []))


def prompt_content(prompt: EncodedPrompt) -> bytes:
    """Return tokens, text, answer, image sources and environment columns as bytes."""
    tokens = array("q", prompt.token_ids).tobytes()
    answer, images = prompt.answer.encode("utf-8", "surrogatepass"), [image.source.encode() for image in prompt.images]
    info = [json.dumps(prompt.info, sort_keys=True).encode()] if prompt.info else []
    source = [f"source {prompt.source}".encode()] if prompt.source else []
    return join_parts(tokens, prompt.text.encode(), answer, *images, *info, *source)


def join_parts(*parts: bytes) -> bytes:
    """The parts with their lengths, so that none can pass for the next one."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def digest_rows(contents: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _show(rows: dict[str, object]) -> str:
    return f"{rows['num_train']} + {rows['num_eval']} rows {str(rows['sha256'])[:12]}"
