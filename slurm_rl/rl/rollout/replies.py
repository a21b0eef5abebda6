"""Single replies from engines that take requests at any time, each as soon as it has ended.

    ask([ReplyRequest(...), ...])  ->  the engine of its episode, else the one with the fewest in flight
    a poll an engine               ->  what has ended since the last one: a call for many replies

A request that went down with its engine is asked again of the successor: its seed decides its tokens, not the time.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.math.sequences import TokenPrompt
from slurm_rl.rl.groups import Completion, SamplingSpec
from slurm_rl.rl.rollout.sampling import Sampler
from slurm_rl.rl.workers.ray_driver import Actor, ActorLost, name_failure

LONGEST_WAIT_S = 60.0
"""Of a poll; an engine that samples nothing in this time has no beat, and its node's agent finds it late."""
_LINGER_S = 0.01
"""So long for each engine of the run requests and replies wait for others to go with: a call to an actor costs the
driver a tenth of a millisecond and more."""
_LONGEST_LINGER_S = 0.1


def linger_s(num_engines: int) -> float:
    """With many engines each has the fewer replies in that time.

    >>> linger_s(1), linger_s(8), linger_s(64)
    (0.01, 0.08, 0.1)
    """
    return min(_LINGER_S * num_engines, _LONGEST_LINGER_S)


class ReplyRequest(NamedTuple):
    """What an engine is asked for."""

    episode: str
    """One request of an episode is in flight at a time."""
    prompt: TokenPrompt
    seed: int
    """Decides the random numbers alone."""
    spec: SamplingSpec
    tools: ToolSyntax | None = None
    """How calls are read off the reply, where its program brought tools; None: as the run's own tools are."""


Replied: TypeAlias = tuple[str, Completion]
"""An episode, and its reply."""
Refused: TypeAlias = tuple[str, str]
"""An episode whose request no engine can do, and why."""
Post: TypeAlias = Callable[[Callable[[], None]], None]


class ReplySampler:
    """All engines as one. Its methods are called in one thread, which also does what is posted.

    Args:
        post: hands a function to that thread, from any other.
        deliver: gets the replies that have come.
        fail: gets what ends the sampling.
        refuse: gets the requests that no engine can do; there are none without tools of programs.
    """

    def __init__(
        self,
        sampler: Sampler,
        post: Post,
        deliver: Callable[[Sequence[Replied]], None],
        fail: Callable[[BaseException], None],
        refuse: Callable[[Sequence[Refused]], None] = lambda refused: None,
    ) -> None:
        self.sampler, self.post, self.deliver, self.fail, self.refuse = sampler, post, deliver, fail, refuse
        self._client = uuid.uuid4().hex
        self._in_flight: dict[str, dict[str, ReplyRequest]] = defaultdict(dict)
        self._homes: dict[str, str] = {}
        """Engine of each episode, which has its keys and values."""
        self._polled: set[str] = set()
        self._reviving: set[str] = set()

    def ask(self, requests: Sequence[ReplyRequest]) -> None:
        """Ask for replies; returns at once."""
        shares: dict[str, list[ReplyRequest]] = defaultdict(list)
        for request in requests:
            home = self._homes.get(request.episode) or self._find_home(request.episode)
            self._in_flight[home][request.episode] = request
            shares[home].append(request)
        for name, share in shares.items():
            if name not in self._reviving:
                self._send(self._engine(name), share)

    def forget(self, episode: str) -> None:
        """No request of it will come again."""
        self._homes.pop(episode, None)

    def _find_home(self, episode: str) -> str:
        home = min(self.sampler.engines, key=lambda engine: len(self._in_flight[engine.name])).name
        self._homes[episode] = home
        return home

    def _engine(self, name: str) -> Actor:
        return next(engine for engine in self.sampler.engines if engine.name == name)

    def _send(self, engine: Actor, share: Sequence[ReplyRequest]) -> None:
        self._call(engine, engine.handle.begin_replies, (self._client, list(share)), lambda it: self._begun(engine, it))
        if engine.name not in self._polled:
            self._poll(engine)

    def _begun(self, engine: Actor, refused: Sequence[Refused]) -> None:
        in_flight = self._in_flight[engine.name]
        self.refuse([one for one in refused if in_flight.pop(one[0], None) is not None])

    def _poll(self, engine: Actor) -> None:
        self._polled.add(engine.name)
        self._call(
            engine,
            engine.handle.take_replies,
            (self._client, LONGEST_WAIT_S, linger_s(len(self.sampler.engines))),
            lambda replies: self._take(engine, replies),
        )

    def _call(self, engine: Actor, method: Any, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        def end(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is None:
                done(answer.result())
            else:
                self._lose(engine, error)

        try:
            answer: Future[Any] = method.remote(*args).future()
        except Exception as error:  # such as an engine known to be dead
            self._lose(engine, error)
            return
        # Ray calls back in a thread that must not wait.
        answer.add_done_callback(lambda it: self.post(lambda: end(it)))

    def _take(self, engine: Actor, replies: Sequence[Replied]) -> None:
        in_flight = self._in_flight[engine.name]
        self.deliver([reply for reply in replies if in_flight.pop(reply[0], None) is not None])
        self._polled.discard(engine.name)
        if in_flight:
            self._poll(engine)

    def _lose(self, engine: Actor, error: BaseException) -> None:
        """Have it replaced in another thread, or end the sampling."""
        if self._engine(engine.name).handle is not engine.handle or engine.name in self._reviving:
            return  # its successor is there, or on its way
        failure, care = name_failure(error, engine.name, "sampling"), self.sampler.care
        if not isinstance(failure, ActorLost) or care is None:
            self.fail(failure)
            return
        failure.handle = engine.handle
        self._reviving.add(engine.name)
        self._polled.discard(engine.name)

        def revive(lost: ActorLost = failure) -> None:
            try:
                care.recover(lost)
            except BaseException as refused:
                self.post(functools.partial(self.fail, refused))
            else:
                self.post(lambda: self._send_again(engine.name))

        threading.Thread(target=revive, name=f"revive-{engine.name}", daemon=True).start()

    def _send_again(self, name: str) -> None:
        self._reviving.discard(name)
        if share := list(self._in_flight[name].values()):
            self._send(self._engine(name), share)
