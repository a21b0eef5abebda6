"""Python's collector of reference cycles in the driver: between steps, not in the middle of every episode.

Thousands of episodes under way are lists of tokens that live for minutes. Python's own thresholds have all of them
looked through again and again: a quarter of the driver's time with 10,000 (benchmarks/many_episodes.py). What has no
cycle is freed at once as ever.
"""

from __future__ import annotations

import gc

_YOUNG, _OLDER, _OLDEST = 100_000, 20, 20
"""New objects that are held before a collection; collections of these before one of older ones; and of those, of all.
Python's own are 700, 10 and 10."""


def collect_rarely() -> None:
    """From here on in this process."""
    gc.set_threshold(_YOUNG, _OLDER, _OLDEST)


def collect_step() -> None:
    """What a step has left in cycles, large arrays perhaps."""
    gc.collect(1)
