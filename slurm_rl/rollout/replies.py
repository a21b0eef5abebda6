"""Single replies from engines that take requests at any time, each as soon as it has ended.

    ask([ReplyRequest(...), ...])  ->  the engine of its episode, else the one with the fewest in flight
    a connection an engine         ->  what has ended since the last message (reply_server.py)

A request that went down with its engine is asked again of the successor: its seed decides its tokens, not the time.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from slurm_rl.errors import TrainingError
from slurm_rl.rollout.pace import Pace
from slurm_rl.rollout.reply_link import Heard, ReplyLink, ReplyListener
from slurm_rl.rollout.reply_request import Refused, Replied, ReplyRequest
from slurm_rl.rollout.reply_server import ReplyAddress
from slurm_rl.rollout.sampling import Sampler
from slurm_rl.workers.ray_driver import Actor, ActorLost, name_failure

_MOST_TRIES, _PAUSE_S = 3, 1.0
"""Of connecting to an engine that lives, and of connections that end without a reply."""


Post: TypeAlias = Callable[[Callable[[], None]], None]


class ReplySampler:
    """All engines as one. Its methods are called in one thread, which also does what is posted.

    Args:
        post: hands a function to that thread, from any other.
        deliver: gets the replies that have come.
        fail: gets what ends the sampling.
        refuse: gets the requests that an engine refused; that costs their episodes, never the run.
    """

    def __init__(
        self,
        sampler: Sampler,
        post: Post,
        deliver: Callable[[Sequence[Replied]], None],
        fail: Callable[[BaseException], None],
        refuse: Callable[[Sequence[Refused]], None],
    ) -> None:
        self.sampler, self.post, self.deliver, self.fail, self.refuse = sampler, post, deliver, fail, refuse
        self._in_flight: dict[str, dict[str, ReplyRequest]] = defaultdict(dict)
        self._homes: dict[str, str] = {}
        """Engine of each episode, which has its keys and values."""
        self._links: dict[str, ReplyLink] = {}
        self.pace = Pace()
        self._listener = ReplyListener(lambda *heard: post(functools.partial(self._take, *heard)), self.pace)
        self._opening: set[str] = set()
        self._engines: dict[str, Actor] = {}
        """To which the last connections were."""
        self._num_breaks: dict[str, int] = defaultdict(int)

    def ask(self, requests: Sequence[ReplyRequest]) -> None:
        """Ask for replies; returns at once."""
        shares: dict[str, list[ReplyRequest]] = defaultdict(list)
        for request in requests:
            home = self._homes.get(request.episode) or self._find_home(request.episode)
            self._in_flight[home][request.episode] = request
            shares[home].append(request)
        for name, share in shares.items():
            if name in self._links:
                self._links[name].send(share)
            else:
                self._open(name)

    def forget(self, episode: str) -> None:
        """No request of it will come again."""
        self._homes.pop(episode, None)

    def _find_home(self, episode: str) -> str:
        home = min(self.sampler.engines, key=lambda engine: len(self._in_flight[engine.name])).name
        self._homes[episode] = home
        return home

    def _engine(self, name: str) -> Actor:
        return next(engine for engine in self.sampler.engines if engine.name == name)

    def _open(self, name: str) -> None:
        """Connect to an engine, in another thread; what is in flight then goes there."""
        if name not in self._opening:
            self._opening.add(name)
            threading.Thread(target=self._connect, args=(name,), name=f"connect-{name}", daemon=True).start()

    def _connect(self, name: str) -> None:
        try:
            link = self._reach(name)
        except BaseException as error:
            self.post(functools.partial(self._give_up, name, error))
        else:
            self.post(functools.partial(self._begin, link))

    def _reach(self, name: str) -> ReplyLink:
        left = _MOST_TRIES
        while True:
            address = self._find_address(name)
            try:
                return ReplyLink(name, address)
            except (OSError, EOFError) as error:  # perhaps it died just now, which Ray says then
                left -= 1
                if left == 0:
                    raise TrainingError(
                        f"the driver must reach {name} at {address.host}, port {address.port}",
                        seen=f"{error!r}",
                        action="let the nodes of a job reach each other on all ports, as Ray has to",
                    ) from None
                time.sleep(_PAUSE_S)

    def _find_address(self, name: str) -> ReplyAddress:
        """Of the engine as it was last, or of its successor: that one is not asked before it has the newest weights."""
        timeout_s = self.sampler.timeout_s
        while True:
            engine = self._engines.setdefault(name, self._engine(name))
            try:
                found: ReplyAddress = engine.handle.open_replies.remote().future().result(timeout_s)
                return found
            except TimeoutError:
                raise TrainingError(
                    f"{name} must take requests within {timeout_s:g} s",
                    seen="no answer",
                    action="raise trainer.step_timeout_s if the work is only slow; else see the attempt's ray logs",
                ) from None
            except Exception as error:
                failure = name_failure(error, name, "sampling")
            if not isinstance(failure, ActorLost) or self.sampler.care is None:
                raise failure
            failure.handle = engine.handle
            self.sampler.care.recover(failure)
            del self._engines[name]

    def _begin(self, link: ReplyLink) -> None:
        self._opening.discard(link.name)
        self._links[link.name] = link
        self._listener.add(link)
        if share := list(self._in_flight[link.name].values()):
            link.send(share)

    def _take(self, heard: Heard, ended: Sequence[ReplyLink]) -> None:
        delivered: list[Replied] = []
        for link, (replies, refused) in heard:
            self._num_breaks[link.name] = 0
            in_flight = self._in_flight[link.name]
            self.refuse([one for one in refused if in_flight.pop(one[0], None) is not None])
            delivered += [reply for reply in replies if in_flight.pop(reply[0], None) is not None]
        self.pace.count(len(delivered), sum(map(len, self._in_flight.values())))
        self.deliver(delivered)
        for link in ended:
            self._close(link)

    def _close(self, link: ReplyLink) -> None:
        """The connection has ended; the engine, asked by Ray, says why."""
        link.close()
        name = link.name
        del self._links[name]
        self._num_breaks[name] += 1
        if self._num_breaks[name] > _MOST_TRIES:
            self.fail(
                TrainingError(
                    f"the connection to {name} for replies must hold", seen=f"{_MOST_TRIES} ends of it without a reply"
                )
            )
        elif self._in_flight[name]:
            self._open(name)

    def _give_up(self, name: str, error: BaseException) -> None:
        self._opening.discard(name)
        self.fail(error)
