"""Tools that the policy may call."""

from __future__ import annotations


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return f"{a + b}="
