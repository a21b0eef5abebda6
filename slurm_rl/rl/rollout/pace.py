"""How often threads that serve many episodes look for what has come.

A message, a wake-up and a write cost the same for one turn as for fifty, so such a thread rests after its work, and
does together what comes meanwhile. A turn passes four times through one: where replies are short, so are the rests.
"""

from __future__ import annotations

import time

_SHARE = 1 / 50
"""Of the time that a reply takes. A turn waits for half a rest each time, so it takes a twenty-fifth longer at most."""
_LONGEST_S = 0.2
_WINDOW_S = 1.0


class Pace:
    """Of all threads of the same episodes."""

    def __init__(self) -> None:
        self._rest_s = 0.0
        self._num, self._since = 0, time.monotonic()

    def count(self, num_replies: int, num_in_flight: int) -> None:
        """So many replies have come, and so many are under way; in one thread."""
        self._num += num_replies
        passed = time.monotonic() - self._since
        if passed >= _WINDOW_S:
            self._rest_s = find_rest(num_in_flight, self._num / passed)
            self._num, self._since = 0, time.monotonic()

    def rest(self) -> None:
        """After some work, for what comes next to be several."""
        time.sleep(self._rest_s)


def find_rest(num_in_flight: int, replies_a_second: float) -> float:
    """Seconds, for replies that take `num_in_flight / replies_a_second` (Little's law).

    >>> find_rest(3000, 1000.0), find_rest(256, 1600.0), find_rest(4, 0.0), find_rest(0, 0.0)
    (0.06, 0.0032, 0.2, 0.0)
    """
    reply_s = num_in_flight / max(replies_a_second, 1e-9)
    return min(_SHARE * reply_s, _LONGEST_S)
