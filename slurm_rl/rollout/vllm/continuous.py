"""Continuous sampling: one thread steps the vLLM engine, and requests and new weights come in between two steps.

A batch that still has its longest completions to end no longer holds up the next one, nor new weights
(PipelineRL, https://arxiv.org/abs/2509.19128; "partial rollouts" in AReaL, https://arxiv.org/abs/2505.24298).
A completion in flight goes on with the weights that came: its tokens so far stay, their keys and values are
computed anew, and each token knows the version that sampled it. So the logprob of every token is the
one that its version would give to it, whatever came before.

    generate(a) --+              +-- step, step, weights 4, step ...
    generate(b) --+-- inbox -->  |   one thread
    update(w4)  --+              +-- a finished completion answers its caller's future

Weights that come in many calls, straight from the policy's memory, hold the engine from the first of them until the
update that ends them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class SampledTokens:
    """One completion while it grows."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    """vLLM's: one dictionary a token."""
    versions: list[int] = field(default_factory=list)
    """Version of the weights that sampled each token."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    """Token or string of SamplingParams that ended it."""
    text: str = ""
    """Without what stopped it; empty unless there are strings to stop at."""


@dataclass
class Request:
    """On its way, and what came of it."""

    samples: list[SampledTokens]
    prompt_logprobs: Any = None
    done: Future[Request] = field(default_factory=Future)


class ContinuousEngine:
    """A vLLM engine (`LLM.llm_engine`) with several callers at once.

    Every method but the private ones may be called from any thread; the engine itself is touched by one alone.
    """

    def __init__(
        self, engine: Any, version: int = -1, *, held: bool = False, dead: tuple[type[BaseException], ...] = ()
    ) -> None:
        """Start the thread.

        Args:
            held: Take no step before the first `update`.
            dead: Exceptions by which vLLM says that the engine itself has died.
        """
        self._engine, self.version, self._held, self._dead = engine, version, held, dead
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._requests: dict[str, Request] = {}
        self._names = count()
        self._broken: BaseException | None = None
        threading.Thread(target=self._loop, name="continuous-engine", daemon=True).start()

    def generate(self, prompts: Sequence[dict[str, Any]], params: Sequence[Any]) -> list[list[SampledTokens]]:
        """Sample completions of each prompt, in order, while other requests are in flight.

        Args:
            prompts: in vLLM's form, such as `{"prompt_token_ids": [...]}`.
            params: vLLM's SamplingParams for each, with `output_kind` CUMULATIVE.
        """
        return [future.result().samples for future in self.begin(prompts, params)]

    def begin(self, prompts: Sequence[dict[str, Any]], params: Sequence[Any]) -> list[Future[Request]]:
        """The same without waiting for their end. A request that vLLM does not take has a future with its exception."""
        requests = self.run(lambda: [self._add(*pair) for pair in zip(prompts, params, strict=True)])
        return [request.done for request in requests]

    def update(self, version: int, load: Callable[[], T], probe: dict[str, Any], params: Any) -> tuple[T, Any]:
        """Between two steps: `load()` new weights, which are `version` from the next token on, and probe them.

        Returns:
            what `load` returned, and vLLM's prompt logprobs of `probe` under the new weights.
        """

        def take() -> tuple[T, Request]:
            loaded = load()
            # Keys and values of the old weights, also those of completions in flight, are computed anew.
            self._engine.reset_prefix_cache(reset_running_requests=True)
            self.version, self._held = version, False
            return loaded, self._add(probe, params)

        loaded, request = self.run(take)
        return loaded, request.done.result().prompt_logprobs

    @property
    def is_broken(self) -> bool:
        return self._broken is not None

    def longest_in_flight(self) -> int:
        """Tokens of the longest completion that has not ended."""
        requests = list(self._requests.values())
        return max((len(sample.token_ids) for request in requests for sample in request.samples), default=0)

    def run(self, function: Callable[[], T], *, hold: bool = False) -> T:
        """Call it in the engine's thread, between two steps.

        Args:
            hold: the next step is taken after the next `update`.
        """
        future: Future[T] = Future()

        def call() -> None:
            self._held = self._held or hold
            try:
                future.set_result(function())
            except BaseException as error:  # the caller waits for it in another thread
                future.set_exception(error)

        self._inbox.put(call)
        return future.result()

    def _add(self, prompt: dict[str, Any], params: Any) -> Request:
        if self._broken is not None:
            raise self._broken
        name = f"continuous-{next(self._names)}"
        request = Request([SampledTokens() for _ in range(params.n)])
        try:
            self._engine.add_request(name, prompt, params)
        except self._dead:
            raise
        except Exception as error:  # of this request: others are sampled as before
            request.done.set_exception(error)
        else:
            self._requests[name] = request
        return request

    def _loop(self) -> None:
        while True:
            if self._held or not self._engine.has_unfinished_requests():
                self._inbox.get()()  # there is nothing to do but what is asked for
            while not self._inbox.empty():
                self._inbox.get()()
            try:
                while not self._held and self._engine.has_unfinished_requests():
                    for output in self._engine.step():
                        self._take(output)
                    if not self._inbox.empty():
                        break
            except BaseException as error:  # all who wait must hear of it
                self._broken = error
                for request in self._requests.values():
                    request.done.set_exception(error)
                self._requests.clear()

    def _take(self, output: Any) -> None:
        request = self._requests[output.request_id]
        for item in output.outputs:
            sample = request.samples[item.index]
            sample.token_ids, sample.logprobs = list(item.token_ids), item.logprobs or []
            sample.versions += [self.version] * (len(sample.token_ids) - len(sample.versions))
            sample.finish_reason, sample.stop_reason, sample.text = item.finish_reason, item.stop_reason, item.text
        request.prompt_logprobs = output.prompt_logprobs or request.prompt_logprobs
        if output.finished:
            del self._requests[output.request_id]
            request.done.set_result(request)
