"""The built-in data: every addition of two small numbers, for runs that need no download."""

from __future__ import annotations

import random

from slurm_rl.errors import DataError
from slurm_rl.train.data.prompts import PromptRow

_LARGEST = 999
"""A million rows; every row is kept in memory."""


def build_addition_rows(largest_addend: int, seed: int) -> list[PromptRow]:
    """Return all (largest_addend + 1)^2 ordered pairs, shuffled by `seed`.

    >>> build_addition_rows(0, seed=0)
    [PromptRow(index=0, prompt='0+0=', answer='0')]

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
    random.Random(f"addition {seed}").shuffle(pairs)
    return [PromptRow(index=i, prompt=f"{a}+{b}=", answer=str(a + b)) for i, (a, b) in enumerate(pairs)]
