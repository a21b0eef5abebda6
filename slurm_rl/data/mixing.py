"""Order of rows from one or several sources: a pure function of the position.

With several sources, places come in blocks of 1,000, shuffled by (seed, block). A block has each source's share,
rounded by largest remainder with carry, so that no source is ever a whole row off its share of all blocks.

    weights {"sums": 2, "games": 1}
    block 0   667 sums, 333 games
    block 1   667       333         2000 places: 1333.3 and 666.7 are due
    block 2   666       334         3000 places: 2000 and 1000
"""

import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final, Protocol

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.data.split import PromptOrder

BLOCK: Final = 1000


class Order(Protocol):
    def take(self, position: int, count: int) -> list[int]:
        """The rows of the next `count` places after `position`; `take(a, n) + take(a + n, m) == take(a, n + m)`."""


class Quotas:
    """Number of rows of each source in a block; `weights` are positive, none below a thousandth of their sum."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.names = sorted(weights)
        # As written: 0.1 is a tenth, not the binary number next to it.
        parts = [Fraction(str(weights[name])) for name in self.names]
        self._due = [BLOCK * part / sum(parts) for part in parts]
        self._before: list[tuple[int, ...]] = [(0,) * len(parts)]
        """Cumulative rows of each source before block 0, 1, ...; extended on demand."""

    def before(self, block: int) -> dict[str, int]:
        """Return the rows of each source in all blocks before this one.

        >>> quotas = Quotas({"sums": 2, "games": 1})
        >>> [quotas.before(block) for block in (1, 2, 3)]  # doctest: +NORMALIZE_WHITESPACE
        [{'games': 333, 'sums': 667}, {'games': 667, 'sums': 1333}, {'games': 1000, 'sums': 2000}]
        """
        while len(self._before) <= block:
            self._before.append(self._add_block(len(self._before), self._before[-1]))
        return dict(zip(self.names, self._before[block], strict=True))

    def of(self, block: int) -> dict[str, int]:
        after = self.before(block + 1)
        return {name: after[name] - count for name, count in self.before(block).items()}

    def _add_block(self, num_blocks: int, before: Sequence[int]) -> tuple[int, ...]:
        """Return the cumulative rows after one more block."""
        # Due in this block, with the carry of earlier ones.
        open_now = [num_blocks * due - count for due, count in zip(self._due, before, strict=True)]
        counts = [math.floor(part) for part in open_now]
        left = BLOCK - sum(counts)
        by_remainder = sorted(range(len(counts)), key=lambda place: (counts[place] - open_now[place], place))
        for place in by_remainder[:left]:
            counts[place] += 1
        return tuple(had + count for had, count in zip(before, counts, strict=True))


class MixedOrder:
    """The order over the rows of several sources; `sources` names the source of each row."""

    def __init__(self, sources: Sequence[str], weights: Mapping[str, float], seed: int) -> None:
        self._quotas, self._seed = Quotas(weights), seed
        self._rows: dict[str, list[int]] = {name: [] for name in self._quotas.names}
        for row, name in enumerate(sources):
            self._rows[name].append(row)
        self._orders = {
            name: PromptOrder(len(rows), derive_seed(seed, "source", name)) for name, rows in self._rows.items()
        }

    def take(self, position: int, count: int) -> list[int]:
        return [row for [row] in self.candidates(position, count, 1)]

    def candidates(self, position: int, count: int, each: int) -> list[list[int]]:
        """Return `each` candidate rows for each place, from the place's source."""
        assert position >= 0, position
        taken: list[list[int]] = []
        while len(taken) < count:
            block, start = divmod(position + len(taken), BLOCK)
            taken += self._candidates_in(block, start, min(count - len(taken), BLOCK - start), each)
        return taken

    def _candidates_in(self, block: int, start: int, count: int, each: int) -> list[list[int]]:
        names = _shuffle(tuple(self._quotas.of(block).items()), self._seed, block)
        used = self._quotas.before(block)
        for name in names[:start]:
            used[name] += 1
        chosen = names[start : start + count]
        rows = {
            name: iter(list_candidates(self._orders[name], used[name], number, each))
            for name in self._rows
            if (number := chosen.count(name))
        }
        return [[self._rows[name][row] for row in next(rows[name])] for name in chosen]


@lru_cache(maxsize=4)
def _shuffle(quotas: tuple[tuple[str, int], ...], seed: int, block: int) -> list[str]:
    """Return the source of each place of a block; cached, since a step takes a small piece of it."""
    names = [name for name, count in quotas for _ in range(count)]
    random.Random(f"block {seed} {block}").shuffle(names)
    return names


def build_order(sources: Sequence[str], weights: Mapping[str, float], seed: int) -> Order:
    """Return the order of a run; without `weights` there is one unnamed source."""
    return MixedOrder(sources, weights, seed) if weights else PromptOrder(len(sources), seed)


def list_candidates(order: Order, position: int, count: int, each: int) -> list[list[int]]:
    """Return `each` candidate rows for each of the next `count` places."""
    if isinstance(order, MixedOrder):
        return order.candidates(position, count, each)
    rows = order.take(position * each, count * each)
    return [rows[start : start + each] for start in range(0, len(rows), each)]
