"""Load balancing over asynchronous engines: each chunk of prompts goes to the engine with the least in flight.

    batch t, batch t + 1  ->  chunks of a few prompts, one queue  ->  engines, at most `max_calls` chunks each

A fixed share per engine would leave engines with short completions idle. Here timing decides which engine samples a
prompt, so such a run does not repeat bit for bit; synchronous runs use fixed shares.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from slurm_rl.data.groups import SamplingSpec
from slurm_rl.rollout.sampling import Chunk, Sampler, cut_chunks
from slurm_rl.workers.ray_driver import Actor, Cluster

if TYPE_CHECKING:
    from slurm_rl.data.tokenize import EncodedPrompt
    from slurm_rl.rollout.engine_supervisor import EngineSupervisor

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
        return min(free, key=self._num_sequences, default=None)

    def _num_sequences(self, engine: Actor) -> int:
        return sum(len(chunk.prompts) * chunk.spec.num_completions for chunk in self._in_flight[engine.name])

    def _send(self, chunk: Chunk, engine: Actor) -> None:
        self._in_flight[engine.name].append(chunk)
        # Ray runs the callback in a thread that must not block.
        chunk.send(engine).add_done_callback(lambda it: self._inbox.put(lambda: self._end(chunk, engine, it)))

    def _end(self, chunk: Chunk, engine: Actor, answer: Future[Any]) -> None:
        self._in_flight[engine.name].remove(chunk)
        chunk.end(answer)


class AsyncSampler(Sampler):
    """A sampler over asynchronous engines: each gets the next prompts as soon as it has room."""

    def __init__(
        self,
        cluster: Cluster,
        engines: Sequence[Actor],
        timeout_s: float,
        supervisor: EngineSupervisor | None = None,
        *,
        max_num_seqs: int,
        staleness: int,
    ) -> None:
        super().__init__(cluster, engines, timeout_s, supervisor)
        self.max_num_seqs, self.balancer = max_num_seqs, LoadBalancer(engines, max_calls(staleness))

    def start(
        self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None = None
    ) -> list[Chunk]:
        """Queue the prompts behind those in flight and return at once."""
        size = chunk_size(len(prompts), spec.num_completions, len(self.engines), self.max_num_seqs)
        chunks = cut_chunks(prompts, spec, own_seeds, [*range(0, len(prompts), size), len(prompts)])
        self.balancer.submit(chunks)
        return chunks

    def _send_again(self, chunk: Chunk, name: str) -> None:
        self.balancer.submit([chunk])
