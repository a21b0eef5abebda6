"""How often threads that serve many episodes look for what has come.

    readers    of engines, of environments   ....|....|....|     all at the same moments, and rest between
    the loop   of all episodes               .....|....|....|    a moment later: does what they brought, sends, waits

A message, a wake-up and a cold cache cost the same for one turn as for fifty, so what comes in a rest is done together.
A turn waits for the readers twice, half a rest each time: where replies are short, so are the rests.
"""

from __future__ import annotations

import time

_SHARE = 1 / 25
"""Of the time that a reply takes, and so of what a turn may take longer."""
_LONGEST_S = 0.2
_GATHER = 1 / 20
"""Of a rest, for the loop."""
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
        """A reader that has read, until the next moment of all readers."""
        if (rest_s := self._rest_s) > 0.0:
            time.sleep(rest_s - time.monotonic() % rest_s)

    def gather(self) -> None:
        """The loop that was given something, for what other readers bring at the same moment."""
        time.sleep(_GATHER * self._rest_s)


def find_rest(num_in_flight: int, replies_a_second: float) -> float:
    """Seconds, for replies that take `num_in_flight / replies_a_second` (Little's law).

    >>> find_rest(3000, 1000.0), find_rest(256, 1600.0), find_rest(4, 0.0), find_rest(0, 0.0)
    (0.12, 0.0064, 0.2, 0.0)
    """
    reply_s = num_in_flight / max(replies_a_second, 1e-9)
    return min(_SHARE * reply_s, _LONGEST_S)
