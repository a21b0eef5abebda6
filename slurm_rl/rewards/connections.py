"""Connections to the reward service, which anybody who reaches the port can open without a token. All are bounded.

How many, by address too (slurm_rl.strangers); the time and the length of a request's head; the time of its body,
whose length app.py bounds; and the lines that they bring into the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

# The other of uvicorn's two, on httptools, takes a head of any length.
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_rl.strangers import Crowd, SeldomLines, at_most

HEAD_S = 10.0
"""For the whole head of a request, from its first byte or from the beginning of the connection."""
BODY_S = 120.0
"""For the rest of it: with the largest that reward.service.max_body_mb allows by default, half a megabyte a second."""
_MOST = 4096
_SHARE = 2


def limit_log_lines() -> None:
    """To the first few, then one a minute: there is one for every request that is none."""
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(SeldomLines())


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which ends a connection whose head or body is late, and a quiet one of too many."""

    quiet: Crowd[Any] = Crowd()  # of all connections of this service, those without a request in work
    timer: asyncio.TimerHandle | None = None
    seen: Any = None  # the last request that came into work

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._be_quiet()
        self._set_timer(HEAD_S)
        num_busy = len(self.connections) - len(self.quiet)
        # At most half of what this process may open.
        for one in self.quiet.choose(at_most(_MOST, share=_SHARE) - num_busy):
            one.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()
        if self in self.quiet and self.timer is None:
            self._set_timer(HEAD_S)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # It may have begun with the next request, which had come before.
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.quiet.remove(self)
        self._stop_timer()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Between two requests there is no timer: uvicorn's own deadline for that is a longer one."""
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if is_busy and self.cycle is not self.seen:
            self.seen = self.cycle
            self.quiet.remove(self)
            self._set_timer(BODY_S)
        if is_busy and not self.cycle.more_body:
            self._stop_timer()
        if not is_busy and self.seen is not None and self not in self.quiet:
            self._stop_timer()
            self._be_quiet()
            if self.conn.trailing_data[0]:  # the next head has begun
                self._set_timer(HEAD_S)

    def _be_quiet(self) -> None:
        if not self.transport.is_closing():
            self.quiet.add(self, self.client[0] if self.client else "")

    def _set_timer(self, seconds: float) -> None:
        self._stop_timer()
        self.timer = asyncio.get_running_loop().call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
