import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def wait_until(check: Callable[[], Result], what: str, *, timeout_s: float = 120.0, every_s: float = 0.05) -> Result:
    """Call `check` until it returns a truthy value and return that; raise TimeoutError at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}; last seen: {result!r}")
        time.sleep(every_s)
