"""In which order the rows are trained on, as a pure function of how many were used before.

There is no iterator to save: a run resumes at the very prompt by one integer, its position.

    PromptOrder(num_rows=3, seed=0).take(2, 3)
    position:   0 1 2 | 3 4 5 |         epochs of three rows, each a permutation of 0..2
    taken:          ^   ^ ^             the last of epoch 0, the first two of epoch 1
"""

from __future__ import annotations

import random
from functools import lru_cache

from slurm_rl.errors import DataError


class PromptOrder:
    """An endless order over rows 0..num_rows-1; holds no state.

    Args:
        num_rows: rows of the training data.
        seed: of the run.

    Raises:
        DataError: there are no rows.
    """

    def __init__(self, num_rows: int, seed: int) -> None:
        if num_rows < 1:
            raise DataError(
                "there must be rows to train on", seen=num_rows, action="check data.train and data.num_eval"
            )
        self._num_rows = num_rows
        self._seed = seed

    def take(self, position: int, count: int) -> list[int]:
        """Return the next `count` rows after `position` prompts were used since the start of the run.

        `take(a, n) + take(a + n, m) == take(a, n + m)`, and each epoch has every row exactly once.
        """
        assert position >= 0, position
        taken: list[int] = []
        while len(taken) < count:
            epoch, start = divmod(position + len(taken), self._num_rows)
            taken += _permutation(self._num_rows, self._seed, epoch)[start : start + count - len(taken)]
        return taken


@lru_cache(maxsize=4)
def _permutation(num_rows: int, seed: int, epoch: int) -> list[int]:
    """Return the order of one epoch; cached, since a step takes a small piece of it."""
    rows = list(range(num_rows))
    random.Random(f"epoch {seed} {epoch}").shuffle(rows)
    return rows
