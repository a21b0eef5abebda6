from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from slurm_rl.rewards.values import describe_error, keep_numbers, read_number, show


class Unreadable(BaseException):
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


@pytest.mark.parametrize(("value", "number"), [(True, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0)])
def test_read_number_converts_real_numbers(value: Any, number: float) -> None:
    found = read_number(value)
    assert found == number and type(found) is float


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (10**400, "too large for a float"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1e16, "above 1e\\+15"),
        ("1", "str '1'"),
        (None, "NoneType"),
        (1j, "complex"),
        (Decimal(1), "Decimal"),
        (Unreadable(), "cannot be shown"),
    ],
)
def test_read_number_refuses_by_name(value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_number(value)


def test_describe_error_accepts_any_exception() -> None:
    assert describe_error(Unreadable()) == "Unreadable: (its text cannot be read)"
    assert len(describe_error(ValueError("x" * 10_000_000))) < 300
    assert describe_error(ValueError("\ud800")).isascii()
    assert show(10**5000) == "<int that cannot be shown>"


def test_kept_numbers_are_bounded_in_count() -> None:
    assert len(keep_numbers({str(number): 1.0 for number in range(65)})) == 64
