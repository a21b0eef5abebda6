"""Connections to the reward service that ask nothing: begun requests that never end, and idle ones. Both are bounded.

Anybody who reaches the port can open them, without a token; each is a descriptor, of which many clusters allow 1,024.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

HEAD_S = 10.0
"""For the whole head of a request, from its first byte or from the beginning of the connection."""
_MOST_QUIET = 4096
# Of the descriptors that this process may have.
_SHARE = 2


def most_quiet() -> int:
    """How many connections without a request in work may be open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_QUIET if descriptors == resource.RLIM_INFINITY else min(_MOST_QUIET, descriptors // _SHARE)


def bounded_protocol() -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which ends a connection whose head is late, and the oldest quiet one of too many."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    # Any: which of uvicorn's two it is depends on what is installed.
    base: Any = AutoHTTPProtocol

    class Bounded(base):
        quiet: dict[Any, None] = {}  # noqa: RUF012 - of all connections of this service, the oldest first
        head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.quiet[self] = None
            self._await_head()
            while len(self.quiet) > most_quiet():
                oldest = next(iter(self.quiet))
                del self.quiet[oldest]
                oldest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.quiet.pop(self, None)
                self._stop_timer()
            else:
                self._await_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # It may have begun with the next request, which had come before.
            if self.cycle.response_complete and not self.transport.is_closing():
                self.quiet[self] = None

        def connection_lost(self, exc: Exception | None) -> None:
            self.quiet.pop(self, None)
            self._stop_timer()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self.head_timer is None:
                self.head_timer = asyncio.get_running_loop().call_later(HEAD_S, self.transport.abort)

        def _stop_timer(self) -> None:
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

    return Bounded
