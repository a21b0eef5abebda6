"""Validate untrusted values: numbers, names and errors of programs, environments, services and reward functions."""

import math
import re
from collections.abc import Mapping
from numbers import Real

from slurm_rl.data.lines import shorten

LARGEST = 1e15
"""Largest absolute value: squares and sums of a batch still fit into float32."""
MOST_NAMES = 64
"""Names of one mapping of scores."""
LONGEST_NAME = 64
SHOWN_CHARS = 200
_NAME = re.compile(rf"\w[\w .:/@%+-]{{0,{LONGEST_NAME - 1}}}")


def read_number(value: object) -> float:
    """Return `value` as a finite float of at most `LARGEST`, or raise ValueError.

    >>> read_number(True), read_number(3)
    (1.0, 3.0)
    """
    if not isinstance(value, Real):
        raise ValueError(f"{type(value).__name__} {show(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("a number that is too large for a float") from None
    if not math.isfinite(number):
        raise ValueError(show(number))
    if abs(number) > LARGEST:
        raise ValueError(f"{number:g}, above {LARGEST:g}")
    return number


def read_numbers(values: object) -> dict[str, float]:
    """Return a mapping of at most `MOST_NAMES` names to numbers as plain values, or raise ValueError.

    >>> read_numbers({"turns": 2})
    {'turns': 2.0}
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{type(values).__name__} {show(values)}")
    if len(values) > MOST_NAMES:
        raise ValueError(f"{len(values)} names, above {MOST_NAMES}")
    found: dict[str, float] = {}
    for name, value in values.items():
        if not is_name(name):
            raise ValueError(f"the name {show(name)}")
        try:
            found[str.__str__(name)] = read_number(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return found


def keep_numbers(values: Mapping[object, object]) -> dict[str, float]:
    """Return the entries that are names with numbers, at most `MOST_NAMES`.

    >>> keep_numbers({"words": 12, "best": "first"})
    {'words': 12.0}
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        try:
            found |= read_numbers({name: value})
        except ValueError:
            continue
        if len(found) == MOST_NAMES:
            break
    return found


def is_name(value: object) -> bool:
    """Return whether this can name a score or an agent: letters, digits and ``_ .:/@%+-`` or a space.

    >>> is_name("pass@1"), is_name("a\\nb"), is_name("")
    (True, False, False)
    """
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def show(value: object, longest: int = SHOWN_CHARS) -> str:
    """Return a short ASCII text of any object, even if its `__repr__` raises."""
    try:
        text = ascii(value)
    except BaseException:  # of an object from outside; the caller reports the object, not its repr
        text = f"<{type(value).__name__} that cannot be shown>"
    return shorten(text, longest)


def describe_error(error: BaseException, longest: int = SHOWN_CHARS) -> str:
    """Return type and text of any exception, even if its `__str__` raises or is huge.

    >>> describe_error(ValueError("no"))
    'ValueError: no'
    """
    try:
        text = str(error)
    except BaseException:  # of an exception from outside; the caller reports that exception
        text = "(its text cannot be read)"
    plain = f"{type(error).__name__}: {text[: longest + 1]}".encode("utf-8", "backslashreplace").decode()
    return shorten(plain, longest)
