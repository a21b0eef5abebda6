"""Load balancing over asynchronous engines: each chunk of prompts goes to the engine with the least in flight.

    batch t, batch t + 1  ->  chunks of a few prompts, one queue  ->  engines, at most `max_calls` chunks each

A fixed share per engine would leave engines with short completions idle. Here timing decides which engine samples a
prompt, so such a run does not repeat bit for bit; synchronous runs use fixed shares.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import Any

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.data.groups import SamplingSpec, Trajectory
from slurm_rl.errors import TrainingError
from slurm_rl.node.wait_for_ray_nodes import POLL_S
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster, name_failure

_CHUNKS_PER_BATCH = 4
"""Least number of chunks of a batch per engine, if there are enough prompts."""
_CHUNKS_PER_ENGINE = 8
"""Chunks that fill an engine. Twice as many are sent: chunks that are nearly done hold few of its slots."""


def max_calls(staleness: int) -> int:
    """Return how many chunks one engine gets at once with `staleness` + 1 batches in flight."""
    return max(2 * _CHUNKS_PER_ENGINE, _CHUNKS_PER_BATCH * (staleness + 1))


def chunk_size(num_prompts: int, num_completions: int, num_engines: int, max_num_seqs: int) -> int:
    """Return the number of prompts per chunk: an eighth of an engine's slots, and several chunks for each engine.

    >>> chunk_size(512, 8, 4, 256), chunk_size(32, 8, 4, 256), chunk_size(3, 8, 4, 256)
    (4, 2, 1)
    """
    fills = max_num_seqs // (_CHUNKS_PER_ENGINE * num_completions)
    return max(1, min(fills, num_prompts // (_CHUNKS_PER_BATCH * num_engines)))


@dataclass(eq=False)
class Chunk:
    """A few prompts of one batch, sampled in one call."""

    prompts: Sequence[TokenPrompt]
    seeds: Sequence[int]
    spec: SamplingSpec
    done: Future[list[list[Trajectory]]] = field(default_factory=Future)
    engine: Actor | None = None
    """The engine that samples it; None while it is queued."""

    @property
    def num_sequences(self) -> int:
        return len(self.prompts) * self.spec.num_completions

    def send(self, engine: Actor) -> Future[Any]:
        """Call the engine; pass the returned future to `end` once it is done."""
        self.engine = engine
        try:
            answer: Future[Any] = engine.handle.generate.remote(self.prompts, self.seeds, self.spec).future()
        except Exception as error:  # for example, Ray already knows that the engine is dead
            answer = Future()
            answer.set_exception(error)
        return answer

    def end(self, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            self.done.set_result(answer.result())
            return
        assert self.engine is not None
        failure = name_failure(error, self.engine.name, "sampling")
        if isinstance(failure, ActorLost):
            failure.handle = self.engine.handle
        self.done.set_exception(failure)

    def reset(self) -> None:
        """Prepare to send the same prompts and seeds again."""
        self.done, self.engine = Future(), None


class LoadBalancer:
    """Sends chunks to engines, oldest first. `submit` may be called from any thread; one thread does the rest."""

    def __init__(self, engines: Sequence[Actor], max_calls: int) -> None:
        self.engines, self.max_calls = engines, max_calls
        self._in_flight: dict[str, list[Chunk]] = {engine.name: [] for engine in engines}
        self._waiting: deque[Chunk] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="load-balancer", daemon=True).start()

    def submit(self, chunks: Sequence[Chunk]) -> None:
        """Append chunks to the queue and return at once."""
        self._inbox.put(lambda: self._waiting.extend(chunks))

    def _loop(self) -> None:
        while True:
            self._inbox.get()()
            while not self._inbox.empty():
                self._inbox.get()()
            while self._waiting and (engine := self._choose_engine()) is not None:
                self._send(self._waiting.popleft(), engine)

    def _choose_engine(self) -> Actor | None:
        """Return the engine with the fewest sequences in flight among those below `max_calls`."""
        free = [engine for engine in self.engines if len(self._in_flight[engine.name]) < self.max_calls]
        return min(free, key=lambda it: sum(c.num_sequences for c in self._in_flight[it.name]), default=None)

    def _send(self, chunk: Chunk, engine: Actor) -> None:
        self._in_flight[engine.name].append(chunk)
        # Ray runs the callback in a thread that must not block.
        chunk.send(engine).add_done_callback(lambda it: self._inbox.put(lambda: self._end(chunk, engine, it)))

    def _end(self, chunk: Chunk, engine: Actor, answer: Future[Any]) -> None:
        self._in_flight[engine.name].remove(chunk)
        chunk.end(answer)


def wait_for_chunks(
    cluster: Cluster,
    chunks: Sequence[Chunk],
    *,
    timeout_s: float,
    stoppable: bool,
    retry: Callable[[Chunk, ActorLost], None] | None = None,
) -> Iterator[list[int]]:
    """Yield the indices of the chunks that finished since the last yield, until all have.

    Args:
        retry: sends a chunk again after its engine was lost; None raises the loss.

    Raises:
        TrainingError: an engine died, raised, or did not answer in time; the error names it.
    """
    deadline = time.monotonic() + timeout_s
    indices = {chunk.done: index for index, chunk in enumerate(chunks)}
    pending = set(indices)
    while pending:
        if stoppable:
            cluster.stop.check()
        cluster.while_waiting()
        finished, pending = wait(pending, timeout=POLL_S, return_when=FIRST_EXCEPTION)
        for future in list(finished):
            try:
                future.result()
            except ActorLost as lost:
                if retry is None:
                    raise
                index = indices.pop(future)
                retry(chunks[index], lost)
                finished.discard(future)
                indices[chunks[index].done] = index
                pending.add(chunks[index].done)
                deadline = time.monotonic() + timeout_s
        if finished:
            yield sorted(indices[future] for future in finished)
        if pending and time.monotonic() > deadline:
            late = {chunk.engine.name if chunk.engine else "no engine" for chunk in chunks if not chunk.done.done()}
            raise TrainingError(
                f"sampling must end within {timeout_s:g} s",
                seen="no answer from " + ", ".join(sorted(late)),
                action="raise trainer.step_timeout_s if the work is only slow; else see the attempt's ray logs",
            )
