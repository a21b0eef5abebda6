"""Rows kept away from training, for evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from slurm_rl.errors import DataError

Row = TypeVar("Row")


def hold_out(
    rows: Sequence[Row], num_eval: int, seed: int, identity: Callable[[Row], str]
) -> tuple[list[Row], list[Row]]:
    """Return (train rows, the `num_eval` rows that `seed` draws).

    Args:
        identity: rows that share it with a row that is held out are in neither list.

    Raises:
        DataError: nothing is left to train on.
    """
    if num_eval >= len(rows):
        raise _too_few(num_eval, f"{len(rows)} rows")
    chosen = set(random.Random(f"hold out {seed}").sample(range(len(rows)), num_eval))
    held_out = [row for position, row in enumerate(rows) if position in chosen]
    taken = {identity(row) for row in held_out}
    train = [row for row in rows if identity(row) not in taken]
    if not train:
        raise _too_few(num_eval, f"{len(rows)} rows, of which none differs from the ones held out")
    return train, held_out


def _too_few(num_eval: int, seen: str) -> DataError:
    return DataError(
        f"data.num_eval = {num_eval} rows are held out, so data.train needs more than that",
        seen=seen,
        action="lower data.num_eval, or name a file in data.eval",
    )
