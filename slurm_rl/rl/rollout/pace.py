"""How often threads that serve many episodes look for what has come: the more they have to do, the more at a time.

A message, a wake-up and a write cost the same for one turn as for fifty, so a thread rests in proportion to its work.
"""

from __future__ import annotations

import time

from slurm_rl.wire import LINGER_S

_LONGEST_S = 0.1
_REST = 19
"""Times its work: a thread that falls behind for no longer than `_LONGEST_S` works for a twentieth of the time."""


class Pace:
    """Of one thread, and made in it."""

    def __init__(self) -> None:
        self._before = time.thread_time()

    def rest(self) -> None:
        """After some work: sleep, for what comes next to be several."""
        time.sleep(find_rest(time.thread_time() - self._before))
        self._before = time.thread_time()


def find_rest(worked_s: float) -> float:
    """Seconds; but nobody waits for longer than replies and tools take anyway.

    >>> find_rest(0.0001), find_rest(0.002), find_rest(1.0)
    (0.01, 0.038, 0.1)
    """
    return min(max(LINGER_S, _REST * worked_s), _LONGEST_S)
