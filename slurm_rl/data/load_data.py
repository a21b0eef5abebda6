"""From the data section to the rows to train on and the rows to evaluate on, for each task.

Nothing here knows the run's seed: it decides in which order rows are trained on (see split.py), not which ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from slurm_rl.config.data import DataConfig
from slurm_rl.data.answers import AnswerRow, PairRow, parse_answer, parse_pair
from slurm_rl.data.chat import as_messages
from slurm_rl.data.prompts import PromptRow, Row, SourceRow, build_rows, load_rows
from slurm_rl.data.records import DataSource
from slurm_rl.data.split import Split, digest_prompts, split_rows
from slurm_rl.errors import DataError

_LARGEST = 999
"""A million rows; every row is kept in memory."""


def build_addition_rows(largest_addend: int) -> list[PromptRow]:
    """Return all (largest_addend + 1)^2 ordered pairs, in order.

    >>> build_addition_rows(0)
    [PromptRow(index=0, where='', prompt='0+0=', answer='0')]

    Raises:
        DataError: there would be more than a million rows.
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
"""(source, split) -> its rows."""


def load_prompts(config: DataConfig) -> Split[PromptRow]:
    """The rows for grpo.

    Raises:
        DataError: a file is wrong (see `build_rows`), or holding out leaves nothing to train on.
    """
    return _load(config, _additions(config), lambda name, split: load_rows(name, config, split))


def load_answers(config: DataConfig) -> Split[AnswerRow]:
    """The rows for sft.

    Raises:
        DataError: a row without a conversation or an answer, an empty turn of the assistant, ... with its line.
    """
    keys = (config.input_key, config.label_key, config.messages_key)
    additions = [AnswerRow(index=r.index, prompt=r.prompt, answer=r.answer) for r in _additions(config)]
    return _load(config, additions, _reader(config, keys, parse_answer))


def load_pairs(config: DataConfig) -> Split[PairRow]:
    """The rows for rm and dpo.

    Raises:
        DataError: a row without chosen or rejected, an equal pair, ... with its line.
    """
    keys = (config.input_key, config.chosen_key, config.rejected_key, config.margin_key)
    additions = [
        PairRow(index=r.index, prompt=r.prompt, chosen=r.answer, rejected=spoil_sum(r, config.largest_addend))
        for r in _additions(config)
    ]
    return _load(config, additions, _reader(config, keys, parse_pair))


def _load(config: DataConfig, additions: list[Row], read: Read[Row]) -> Split[Row]:
    rows = additions or read(config.train, config.train_split)
    evals = None if config.eval is None else read(config.eval, config.eval_split)
    return split_rows(rows, evals, config.num_eval, _digest)


def _additions(config: DataConfig) -> list[PromptRow]:
    return build_addition_rows(config.largest_addend) if config.train == "addition" else []


def _reader(config: DataConfig, keys: Sequence[str | None], parse: Callable[..., Row]) -> Read[Row]:
    """Rows with answers have their columns in several ways, so none of them must be there."""
    wanted = tuple(dict.fromkeys(key for key in (*keys, config.image_key) if key is not None))
    source = partial(DataSource, columns=(), subset=config.subset, revision=config.revision, optional=wanted)
    return lambda name, split: build_rows(source(name=name, split=split), partial(parse, config=config))


def _digest(row: SourceRow) -> list[bytes]:
    prompt, *answers = row.texts
    # Of a pair the better answer, as an sft row of the same conversation has it.
    answer = answers[0] if answers and not isinstance(answers[0], str) else []
    return digest_prompts(as_messages(prompt), answer)


def require_one_batch(num_rows: int, batch_size: int) -> None:
    """Raise DataError when the rows to train on do not fill one batch."""
    if num_rows < batch_size:
        raise DataError(
            "the rows to train on must fill one batch of supervised.batch_size",
            seen=f"{num_rows} rows < {batch_size}",
            action=f"set supervised.batch_size={num_rows} or lower, or add rows",
        )
