"""What the loop asks of a rollout engine, written down: each runs as a Ray actor. To sample with another program, write
a class with the methods of `RolloutEngine` below rl/rollout/<its name>/ and start it in build.py; nothing else of this
project knows what an engine is made of.

Requests to the engine with the fewest in flight, for engines that take them at any time
(`rollout.inflight_weight_updates`).

    batch t, batch t + 1  ->  chunks of a few prompts, one queue  ->  the engine with the least in flight

A batch that is split into one share an engine beforehand leaves engines idle that got short completions, until the
slowest share has ended. Here each engine has a bounded number of chunks, and what goes beyond waits at this end:
the next chunk goes to whoever has room first. The time decides who samples what, so such a run cannot be repeated
bit for bit; the synchronous loop and `rollout.max_off_policy_steps` alone keep their fixed shares.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.data.groups import Completion, SamplingSpec
from slurm_rl.errors import TrainingError
from slurm_rl.node.wait_for_ray_nodes import POLL_S
from slurm_rl.rollout.weights.weight_record import HeldWeights, WeightRecord
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster, name_failure

if TYPE_CHECKING:
    from slurm_rl.rollout.reply_request import Refused, Replied, ReplyRequest
    from slurm_rl.rollout.reply_server import ReplyAddress

_CHUNKS_OF_A_BATCH = 4
"""Chunks that an engine gets of each batch, at the least, where there are prompts enough."""
_CHUNKS_OF_AN_ENGINE = 8
"""Chunks that fill an engine. Twice as many are sent: those that have nearly ended hold few of its places."""


class RolloutEngine(Protocol):
    """Samples completions of token ids, takes weights and proves which ones it holds."""

    def ready(self) -> bool:
        """Returns once the model is loaded."""

    def generate(
        self, prompts: Sequence[TokenPrompt], seeds: Sequence[int], spec: SamplingSpec
    ) -> list[list[Completion]]:
        """Sample `spec.num_completions` for each prompt, in order. The same call repeats in every bit, unless the
        engine takes requests while others are in flight (`rollout.inflight_weight_updates`).

        Args:
            seeds: one a prompt, in 0 .. 2^63 - 1; they alone decide the random numbers, not the rest of the batch.
        """

    def open_replies(self) -> ReplyAddress:
        """Where a ReplyServer takes requests for single replies, for engines that take requests at any time; that one
        alone calls the two methods below. Raises what ended the sampling."""

    def begin_replies(self, client: str, requests: Sequence[ReplyRequest]) -> list[Refused]:
        """Begin to sample single replies beside all that is in flight.

        Args:
            client: names who asks, and who alone gets them.

        Returns:
            the requests that are not begun, and why: an engine refuses a request by itself and samples the others.
        """

    def take_replies(self, client: str, wait_s: float, linger_s: float) -> list[Replied]:
        """Replies that have ended since the last call; waits `wait_s` for the first, and then so long for others."""

    def load_weights(self, version: int, records: Sequence[WeightRecord], probe: TokenPrompt) -> HeldWeights:
        """Take whole weights, or adapters over the base; then say what is held."""

    def call_workers(self, method: str, arguments: dict[str, Any]) -> None:
        """A step of a direct transfer, on every tensor-parallel rank."""

    def confirm_weights(self, version: int, sent: Any, probe: TokenPrompt) -> HeldWeights:
        """After a direct transfer: what is held. `sent` makes it come after the policy's sending."""

    def sleep(self) -> None:
        """Leave the GPUs to the policy until the next weights; nothing where the engine has GPUs of its own."""


def max_calls(staleness: int) -> int:
    """Chunks that one engine is sent at once, when up to `staleness` + 1 batches are in flight."""
    return max(2 * _CHUNKS_OF_AN_ENGINE, _CHUNKS_OF_A_BATCH * (staleness + 1))


def chunk_size(num_prompts: int, num_completions: int, num_engines: int, max_num_seqs: int) -> int:
    """Prompts of one chunk: an eighth of what fills an engine, and small enough that every engine gets several.

    >>> chunk_size(512, 8, 4, 256), chunk_size(32, 8, 4, 256), chunk_size(3, 8, 4, 256)
    (4, 2, 1)
    """
    fills = max_num_seqs // (_CHUNKS_OF_AN_ENGINE * num_completions)
    return max(1, min(fills, num_prompts // (_CHUNKS_OF_A_BATCH * num_engines)))


@dataclass(eq=False)
class Chunk:
    """A few prompts of one batch, on their way."""

    prompts: Sequence[TokenPrompt]
    seeds: Sequence[int]
    spec: SamplingSpec
    done: Future[list[list[Completion]]] = field(default_factory=Future)
    engine: Actor | None = None
    """Who samples it; None while it waits here."""

    @property
    def num_sequences(self) -> int:
        return len(self.prompts) * self.spec.num_completions

    def send(self, engine: Actor) -> Future[Any]:
        """Ask the engine; what it answers goes to `end`."""
        self.engine = engine
        try:
            answer: Future[Any] = engine.handle.generate.remote(self.prompts, self.seeds, self.spec).future()
        except Exception as error:  # such as an engine known to be dead; whoever waits for the chunk hears of it
            answer = Future()
            answer.set_exception(error)
        return answer

    def end(self, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            self.done.set_result(answer.result())
        else:
            assert self.engine is not None
            failure = name_failure(error, self.engine.name, "sampling")
            if isinstance(failure, ActorLost):
                failure.handle = self.engine.handle
            self.done.set_exception(failure)

    def begin_again(self) -> None:
        """Forget what became of it, before it is sent once more: the same prompts and seeds."""
        self.done, self.engine = Future(), None


class Dispatcher:
    """Hands chunks to engines, oldest first. Any thread may submit; one thread of its own does the rest."""

    def __init__(self, engines: Sequence[Actor], max_calls: int) -> None:
        self.engines, self.max_calls = engines, max_calls
        self._in_flight: dict[str, list[Chunk]] = {engine.name: [] for engine in engines}
        self._waiting: deque[Chunk] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="dispatcher", daemon=True).start()

    def submit(self, chunks: Sequence[Chunk]) -> None:
        """Put chunks at the end of the queue; returns at once."""
        self._inbox.put(lambda: self._waiting.extend(chunks))

    def _loop(self) -> None:
        while True:
            self._inbox.get()()
            while not self._inbox.empty():
                self._inbox.get()()
            while self._waiting and (engine := self._find_room()) is not None:
                self._send(self._waiting.popleft(), engine)

    def _find_room(self) -> Actor | None:
        """The engine with the fewest sequences in flight, of those that may get another chunk."""
        free = [engine for engine in self.engines if len(self._in_flight[engine.name]) < self.max_calls]
        return min(free, key=lambda it: sum(c.num_sequences for c in self._in_flight[it.name]), default=None)

    def _send(self, chunk: Chunk, engine: Actor) -> None:
        self._in_flight[engine.name].append(chunk)
        # Ray calls back in a thread that must not wait, so all it does is to write a note.
        chunk.send(engine).add_done_callback(lambda it: self._inbox.put(lambda: self._end(chunk, engine, it)))

    def _end(self, chunk: Chunk, engine: Actor, answer: Future[Any]) -> None:
        self._in_flight[engine.name].remove(chunk)
        chunk.end(answer)


def chunk_arrivals(
    cluster: Cluster,
    chunks: Sequence[Chunk],
    *,
    timeout_s: float,
    stoppable: bool,
    revive: Callable[[Chunk, ActorLost], None] | None = None,
) -> Iterator[list[int]]:
    """Places of the chunks that ended since the last time, until all have.

    Args:
        revive: sends a chunk again whose engine was lost; None: that ends the waiting.

    Raises:
        TrainingError: an engine died, raised, or was silent at the deadline; it is named.
    """
    deadline = time.monotonic() + timeout_s
    places = {chunk.done: place for place, chunk in enumerate(chunks)}
    pending = set(places)
    while pending:
        if stoppable:
            cluster.stop.check()
        cluster.while_waiting()
        ended, pending = wait(pending, timeout=POLL_S, return_when=FIRST_EXCEPTION)
        for future in list(ended):
            try:
                future.result()
            except ActorLost as lost:
                if revive is None:
                    raise
                place = places.pop(future)
                revive(chunks[place], lost)
                ended.discard(future)
                places[chunks[place].done] = place
                pending.add(chunks[place].done)
                deadline = time.monotonic() + timeout_s
        if ended:
            yield sorted(places[future] for future in ended)
        if pending and time.monotonic() > deadline:
            late = {chunk.engine.name if chunk.engine else "no engine" for chunk in chunks if not chunk.done.done()}
            raise TrainingError(
                f"sampling must end within {timeout_s:g} s",
                seen="no answer from " + ", ".join(sorted(late)),
                action="raise trainer.step_timeout_s if the work is only slow; else see the attempt's ray logs",
            )
