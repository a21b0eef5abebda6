"""Waiting with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def wait_until(check: Callable[[], Result], what: str, *, timeout_s: float = 120.0, every_s: float = 0.05) -> Result:
    """Call `check` until it returns something true, and return that; TimeoutError says what did not come."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}; last seen: {result!r}")
        time.sleep(every_s)
