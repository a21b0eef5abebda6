"""Client of asynchronous engines: submits requests one by one and delivers each response when it is done.

    submit([request, ...])  ->  the engine of the episode (prefix cache), else the one with the fewest in flight
    engine.collect          ->  one long poll per engine, which returns all responses since the last one

Requests lost with an engine are sent to its replacement: the seed determines the tokens, so the result is the same.
"""

import functools
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from slurm_rl.rollout.engine import Generated, GenerationRequest, Rejected
from slurm_rl.rollout.sampling import Sampler
from slurm_rl.workers.ray_driver import Actor, ActorLost, call_method, name_failure

_WAIT_S = 30.0
"""Longest wait of one poll; an engine without output for this long is checked for a heartbeat by its node's agent."""
_LATENCY_SHARE, _LONGEST_DELAY_S = 1 / 50, 0.1
"""Bounds of the batching delay: a share of the mean time of a response, and seconds."""

Post: TypeAlias = Callable[[Callable[[], None]], None]


class GenerationClient:
    """All engines as one. Methods are called in one thread, which also runs the posted functions.

    Args:
        post: runs a function in that thread; callable from any thread.
        deliver: receives responses.
        fail: receives the error that ends sampling.
        reject: receives rejected requests; a rejection costs one episode, not the run.
    """

    def __init__(
        self,
        sampler: Sampler,
        post: Post,
        deliver: Callable[[Sequence[Generated]], None],
        fail: Callable[[BaseException], None],
        reject: Callable[[Sequence[Rejected]], None],
    ) -> None:
        self.sampler, self.post, self.deliver, self.fail, self.reject = sampler, post, deliver, fail, reject
        self.name = uuid.uuid4().hex
        self._in_flight: dict[str, dict[str, GenerationRequest]] = defaultdict(dict)
        self._homes: dict[str, str] = {}
        """Engine of each episode, which has its prefix in the cache."""
        self._engines: dict[str, Actor] = {}
        """Engines in use. A replacement is used only after `recover` has returned: by then it has its weights."""
        self._polling: set[str] = set()
        self._recovering: set[str] = set()
        self._num_responses, self._since = 0, time.monotonic()
        self.delay_s = 0.0
        """Batching delay in seconds, in which a poll waits for more responses and the caller for more requests."""

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Send requests to the engines and return at once."""
        shares: dict[str, list[GenerationRequest]] = defaultdict(list)
        for request in requests:
            home = self._homes.get(request.name) or self._choose_home(request.name)
            self._in_flight[home][request.name] = request
            shares[home].append(request)
        for name, share in shares.items():
            if name not in self._recovering:
                self._send(name, share)

    def forget(self, episode: str) -> None:
        """Release the engine of an episode that is over."""
        self._homes.pop(episode, None)

    def _choose_home(self, episode: str) -> str:
        home = min(self.sampler.engines, key=lambda engine: len(self._in_flight[engine.name])).name
        self._homes[episode] = home
        return home

    def _send(self, name: str, requests: Sequence[GenerationRequest]) -> None:
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = next(one for one in self.sampler.engines if one.name == name)
        # Plain tuples: the class names would take longer to pickle than the content.
        plain = [tuple(request) for request in requests]
        self._call(engine, self._check_submitted, engine.handle.submit, plain)
        self._poll(engine)

    def _poll(self, engine: Actor) -> None:
        if engine.name not in self._polling and self._in_flight[engine.name]:
            self._polling.add(engine.name)
            self._call(engine, self._take, engine.handle.collect, _WAIT_S, self.delay_s)

    def _call(self, engine: Actor, then: Callable[[Actor, Future[Any]], None], method: Any, *args: Any) -> None:
        answer = call_method(method, self.name, *args)
        answer.add_done_callback(lambda it: self.post(functools.partial(then, engine, it)))

    def _check_submitted(self, engine: Actor, answer: Future[None]) -> None:
        if (error := answer.exception()) is not None:
            self._handle_failure(engine, error)

    def _take(self, engine: Actor, answer: Future[tuple[list[Generated], list[Rejected]]]) -> None:
        if self._engines.get(engine.name) is engine:
            self._polling.discard(engine.name)
        if (error := answer.exception()) is not None:
            self._handle_failure(engine, error)
            return
        in_flight = self._in_flight[engine.name]
        responses, rejected = answer.result()
        responses = [one for one in responses if in_flight.pop(one[0], None) is not None]
        rejected = [one for one in rejected if in_flight.pop(one[0], None) is not None]
        self._adapt_delay(len(responses))
        self.deliver(responses)
        self.reject(rejected)
        self._poll(engine)

    def _adapt_delay(self, num_responses: int) -> None:
        """Derive the batching delay from the mean time of a response, in flight / throughput (Little's law)."""
        self._num_responses += num_responses
        passed = time.monotonic() - self._since
        if passed >= 1.0:
            mean_s = sum(map(len, self._in_flight.values())) * passed / max(self._num_responses, 1)
            self.delay_s = min(_LATENCY_SHARE * mean_s, _LONGEST_DELAY_S)
            self._num_responses, self._since = 0, time.monotonic()

    def _handle_failure(self, engine: Actor, error: BaseException) -> None:
        if self._engines.get(engine.name) is not engine or engine.name in self._recovering:
            return  # handled before
        failure = name_failure(error, engine.name, "sampling")
        if not isinstance(failure, ActorLost) or self.sampler.supervisor is None:
            self.fail(failure)
            return
        failure.handle = engine.handle
        self._recovering.add(engine.name)
        threading.Thread(target=self._recover, args=(failure,), name=f"recover-{engine.name}", daemon=True).start()

    def _recover(self, lost: ActorLost) -> None:
        assert self.sampler.supervisor is not None
        try:
            self.sampler.supervisor.recover(lost)
        except BaseException as error:
            self.post(functools.partial(self.fail, error))
        else:
            self.post(functools.partial(self._resend, lost.actor))

    def _resend(self, name: str) -> None:
        self._recovering.discard(name)
        self._polling.discard(name)
        del self._engines[name]
        if requests := list(self._in_flight[name].values()):
            self._send(name, requests)
