"""The driver's side of connections to engines for single replies; reply_server.py is the other."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from slurm_rl.rollout.pace import Pace
from slurm_rl.rollout.reply_request import ReplyRequest
from slurm_rl.rollout.reply_server import ReplyAddress, prove
from slurm_rl.run_dir.wire import Outbox, Wire

_CONNECT_S = 30.0


class ReplyLink:
    """A connection to the engine `name`.

    Raises:
        OSError, EOFError: the engine's port cannot be reached, or somebody else is there.
    """

    def __init__(self, name: str, address: ReplyAddress) -> None:
        self.name = name
        end = socket.create_connection((address.host, address.port), timeout=_CONNECT_S)
        try:
            prove(end, address.key, is_engine=False)
        except BaseException:
            end.close()
            raise
        self.wire = Wire(end)
        self._outbox = Outbox(self.wire)

    def send(self, requests: Sequence[ReplyRequest]) -> None:
        """Returns at once."""
        # Without the names of their class, which take longer than all that is in them.
        self._outbox.put([tuple(request) for request in requests])

    def close(self) -> None:
        self._outbox.close()
        self.wire.shut_down()
        self.wire.close()


Heard: TypeAlias = Sequence[tuple[ReplyLink, Any]]
"""Messages, in their order from each."""


class ReplyListener:
    """Reads all connections in one thread: with many engines a thread each would wake up for every message.

    Args:
        take: gets what has come, and the connections that have ended with it, in that thread.
    """

    def __init__(self, take: Callable[[Heard, Sequence[ReplyLink]], None], pace: Pace) -> None:
        self._take, self._pace = take, pace
        self._selector = selectors.EpollSelector()  # which takes new connections while a thread waits
        self._thread: threading.Thread | None = None

    def add(self, link: ReplyLink) -> None:
        """Called in one thread."""
        self._selector.register(link.wire, selectors.EVENT_READ, link)
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="replies", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        while True:
            heard: list[tuple[ReplyLink, Any]] = []
            ended: list[ReplyLink] = []
            for key, _ in self._selector.select():
                link: ReplyLink = key.data
                try:
                    heard += [(link, message) for message in link.wire.receive()]
                except (OSError, EOFError):
                    self._selector.unregister(link.wire)
                    ended.append(link)
            self._take(heard, ended)
            self._pace.rest()
