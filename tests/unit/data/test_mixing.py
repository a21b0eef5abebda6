from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.data.mixing import BLOCK, MixedOrder, Quotas, build_order
from slurm_rl.data.split import PromptOrder
from slurm_rl.errors import DataError

WEIGHTS = {"sums": 2.0, "games": 1.0, "rare": 0.05}
SIZES = {"sums": 7, "games": 40, "rare": 3}
SOURCES = [name for name, size in SIZES.items() for _ in range(size)]
weights = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60).map(lambda n: n / 10), min_size=1)


@given(weights)
def test_blocks_have_exact_quotas_and_bounded_drift(found: dict[str, float]) -> None:
    quotas, total = Quotas(found), sum(Fraction(str(weight)) for weight in found.values())
    shares = {name: Fraction(str(weight)) / total for name, weight in found.items()}
    for block in range(12):
        of_block = quotas.of(block)
        assert sum(of_block.values()) == BLOCK and min(of_block.values()) >= 0
        for name, share in shares.items():
            assert abs(of_block[name] - BLOCK * share) < 2
            assert abs(quotas.before(block)[name] - block * BLOCK * share) < 1


def test_remainder_of_thirds_is_carried() -> None:
    quotas = Quotas({"a": 1, "b": 1, "c": 1})
    assert [tuple(quotas.of(block).values()) for block in range(3)] == [
        (334, 333, 333),
        (333, 334, 333),
        (333, 333, 334),
    ]
    assert quotas.before(3) == {"a": 1000, "b": 1000, "c": 1000}


def test_order_keeps_quotas_and_covers_sources() -> None:
    order, quotas = MixedOrder(SOURCES, WEIGHTS, seed=5), Quotas(WEIGHTS)
    taken = order.take(0, 3 * BLOCK)
    for block in range(3):
        rows = taken[block * BLOCK : (block + 1) * BLOCK]
        assert Counter(SOURCES[row] for row in rows) == quotas.of(block)
    for name, size in SIZES.items():
        rows = [row for row in taken if SOURCES[row] == name]
        for epoch in range(len(rows) // size):
            assert len(set(rows[epoch * size : (epoch + 1) * size])) == size


@settings(max_examples=30)
@given(st.integers(0, 2500), st.integers(0, 700), st.integers(0, 700), st.integers(0, 9))
def test_resumed_order_is_exact(a: int, n: int, m: int, seed: int) -> None:
    whole = MixedOrder(SOURCES, WEIGHTS, seed).take(a, n + m)
    # New objects, as after a restart.
    parts = MixedOrder(SOURCES, WEIGHTS, seed).take(a, n) + MixedOrder(SOURCES, WEIGHTS, seed).take(a + n, m)
    assert parts == whole and len(whole) == n + m


def test_order_follows_seed_not_table_order() -> None:
    first = MixedOrder(SOURCES, WEIGHTS, seed=1).take(0, 50)
    assert first == MixedOrder(SOURCES, dict(reversed(WEIGHTS.items())), seed=1).take(0, 50)
    assert first != MixedOrder(SOURCES, WEIGHTS, seed=2).take(0, 50)


def test_unnamed_single_source_keeps_plain_order() -> None:
    assert build_order([""] * 50, {}, seed=3).take(17, 90) == PromptOrder(50, 3).take(17, 90)


def test_source_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="at least one row"):
        build_order(["a"], {"a": 1, "b": 1}, seed=0)
