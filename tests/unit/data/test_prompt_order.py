import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.data.split import PromptOrder
from slurm_rl.errors import DataError

rows = st.integers(1, 40)
seeds = st.integers(0, 2**32)
counts = st.integers(0, 130)


@given(rows, seeds, st.integers(0, 50))
def test_epoch_has_each_row_once(num_rows: int, seed: int, epoch: int) -> None:
    assert sorted(PromptOrder(num_rows, seed).take(epoch * num_rows, num_rows)) == list(range(num_rows))


@given(rows, seeds, counts, counts, counts)
def test_resumed_order_is_exact(num_rows: int, seed: int, a: int, n: int, m: int) -> None:
    whole = PromptOrder(num_rows, seed).take(a, n + m)
    assert PromptOrder(num_rows, seed).take(a, n) + PromptOrder(num_rows, seed).take(a + n, m) == whole
    assert len(whole) == n + m


def test_epochs_and_seeds_differ() -> None:
    order = PromptOrder(50, seed=0)
    assert order.take(0, 50) != order.take(50, 50)
    assert order.take(0, 50) != PromptOrder(50, seed=1).take(0, 50)
    # Seed 1 must not be seed 0 one epoch later.
    assert order.take(50, 50) != PromptOrder(50, seed=1).take(0, 50)


def test_order_is_same_in_every_process() -> None:
    assert PromptOrder(6, seed=0).take(0, 12) == [4, 3, 1, 2, 5, 0, 0, 4, 5, 2, 3, 1]


def test_order_of_no_rows_is_error() -> None:
    with pytest.raises(DataError, match="got 0"):
        PromptOrder(0, seed=0)
