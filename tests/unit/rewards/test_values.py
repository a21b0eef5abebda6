from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from slurm_rl.rewards.values import describe_error, is_name, keep_numbers, read_number, read_numbers, show


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


@pytest.mark.parametrize("name", ["\ud800", "a\nb", "", "\x1b[31m", "x" * 65, 3, None, "/a"])
def test_read_numbers_refuses_names_that_keep_numbers_drops(name: Any) -> None:
    assert not is_name(name) and keep_numbers({name: 1.0, "good": 2}) == {"good": 2.0}
    with pytest.raises(ValueError, match="the name"):
        read_numbers({name: 1.0})


def test_numbers_by_name_are_bounded_in_count() -> None:
    many = {str(number): 1.0 for number in range(65)}
    assert len(keep_numbers({**many})) == 64
    with pytest.raises(ValueError, match="65 names, above 64"):
        read_numbers(many)


def test_describe_error_accepts_any_exception() -> None:
    assert describe_error(Unreadable()) == "Unreadable: (its text cannot be read)"
    assert len(describe_error(ValueError("x" * 10_000_000))) < 300
    assert describe_error(ValueError("\ud800")).isascii()
    assert show(10**5000) == "<int that cannot be shown>"
