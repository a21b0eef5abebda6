"""How often threads that serve many episodes look for what has come.

A message, a wake-up and a write cost the same for one turn as for fifty, so a thread rests in proportion to its work,
and what comes meanwhile is done together. But a turn passes such a thread four times, so none rests for long where
replies are short: not for more than a fiftieth of the time that a reply takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_REST = 49
"""Times its work, so that a thread works for a fiftieth of the time."""
_SHARE = 1 / 50
_LONGEST_S = 0.1
_WINDOW_S = 1.0


class Pace:
    """Of all threads of the same episodes."""

    def __init__(self) -> None:
        self._reply_s = 0.5
        self._num, self._since = 0, time.monotonic()

    def count(self, num_replies: int, num_in_flight: int) -> None:
        """So many replies have come, and so many are under way; in one thread."""
        self._num += num_replies
        passed = time.monotonic() - self._since
        if passed >= _WINDOW_S:
            self._reply_s = find_reply_time(num_in_flight, self._num, passed)
            self._num, self._since = 0, time.monotonic()

    def begin(self) -> Callable[[], None]:
        """What the calling thread calls after some work: it sleeps, for what comes next to be several."""
        before = time.thread_time()

        def rest() -> None:
            nonlocal before
            time.sleep(find_rest(time.thread_time() - before, self._reply_s))
            before = time.thread_time()

        return rest


def find_reply_time(num_in_flight: int, num_replies: int, passed_s: float) -> float:
    """Seconds that a reply takes, by Little's law; where none has come, at least so long.

    >>> find_reply_time(3000, 500, 0.5), find_reply_time(4, 0, 1.0)
    (3.0, 4.0)
    """
    return num_in_flight * passed_s / max(num_replies, 1)


def find_rest(worked_s: float, reply_s: float) -> float:
    """Seconds.

    >>> [round(find_rest(0.0002, reply_s), 4) for reply_s in (0.1, 10.0)], find_rest(0.01, 10.0)
    ([0.002, 0.0098], 0.1)
    """
    return min(_REST * worked_s, _SHARE * reply_s, _LONGEST_S)
