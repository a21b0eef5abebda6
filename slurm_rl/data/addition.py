"""The built-in data: every addition of two small numbers, for runs that need no download."""

from __future__ import annotations

import random

from slurm_rl.data.prompts import PromptRow
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
