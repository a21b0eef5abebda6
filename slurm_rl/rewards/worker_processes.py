"""Worker processes of the reward pool: pebble's pool with a deadline for the start, and a restart when it breaks."""

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from pebble import ProcessPool

from slurm_rl.errors import RewardError
from slurm_rl.rewards import worker
from slurm_rl.rewards.results import Failure, RewardItem

Outcomes: TypeAlias = list[dict[str, float] | Failure]

_POLL_S = 0.5
_WARM_PAUSE_S = 0.05


class VerifierProcesses:
    """`num_workers` processes that score chunks of items. Only `wake` is thread-safe."""

    def __init__(self, num_workers: int, table: Mapping[str, str], start_timeout_s: float) -> None:
        self._num_workers = num_workers
        self.start_timeout_s = start_timeout_s
        self._table = dict(table)
        self._pool: Any = None
        self._done: SimpleQueue[Future[Outcomes]] = SimpleQueue()

    def start(self) -> None:
        """Start the processes and wait until each has imported the verifiers, or raise RewardError."""
        self._done = SimpleQueue()
        self._pool = ProcessPool(
            max_workers=self._num_workers,
            initializer=worker.start_worker,
            initargs=(self._table,),
            context=_fork_server(self._table),
        )
        try:
            self._warm_up(time.monotonic() + self.start_timeout_s)
        except BaseException:
            self.stop()
            raise

    def _warm_up(self, give_up: float) -> None:
        ready: set[int] = set()
        while len(ready) < self._num_workers:
            future: Future[int | Failure] = self._pool.schedule(worker.warm_up, (self._table, _WARM_PAUSE_S))
            while not wait([future], timeout=_POLL_S).done:
                if time.monotonic() > give_up or not self._pool.active:
                    raise self._not_up(len(ready))
            answer = None if future.exception() else future.result()
            if isinstance(answer, Failure):
                raise RewardError(
                    "every verifier under reward.verifiers must be importable",
                    seen=answer.detail,
                    action="install the named package in the job's image",
                )
            if answer is not None:
                ready.add(answer)
            elif time.monotonic() > give_up or not self._pool.active:
                raise self._not_up(len(ready))

    def _not_up(self, num_ready: int) -> RewardError:
        return RewardError(
            f"{self._num_workers} reward workers must be up within {self.start_timeout_s:g} s",
            seen=f"{num_ready} up",
            action="read the log above for what ended them, lower reward.num_workers to the CPUs of the node, "
            "or raise reward.start_timeout_s",
        )

    def submit(self, items: Sequence[RewardItem], *, budget_s: float, deadline_s: float) -> Future[Outcomes]:
        """Score items in one worker: it returns early after `budget_s` and is ended after `deadline_s`."""
        future: Future[Outcomes]
        try:
            future = self._pool.schedule(worker.score_items, (self._table, list(items), budget_s), timeout=deadline_s)
        except RuntimeError:  # the pool broke while it was idle; `next_done` reports it
            future = Future()
            future.set_exception(BrokenProcessPool())
        future.add_done_callback(self._done.put)
        return future

    def wake(self) -> None:
        """Make `next_done` return at once with an unknown future. Thread-safe."""
        self._done.put(Future())

    def next_done(self, deadline_s: float) -> Future[Outcomes] | None:
        """Return a submitted future that is done; None when the pool broke and needs a `restart`.

        A pool breaks when a worker is killed while idle or holding the queue's lock.
        """
        give_up = time.monotonic() + deadline_s
        while time.monotonic() < give_up:
            try:
                future = self._done.get(timeout=_POLL_S)
            except Empty:
                if self._pool.active:
                    continue
                return None
            broken = future.done() and not future.cancelled() and isinstance(future.exception(), BrokenProcessPool)
            return None if broken else future
        return None

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        """End all processes at once, also one in an endless loop. Harmless when there are none."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


def _fork_server(table: Mapping[str, str]) -> Any:
    """Return the start method: fork from a server that has imported the verifiers.

    The trainer has threads and perhaps a GPU context, which do not survive a fork; spawn would import sympy again.
    """
    context = multiprocessing.get_context("forkserver")
    # Only our modules: importing others is a worker's risk. Modules of the first pool stay loaded.
    modules = {spec.partition(":")[0] for spec in table.values() if spec.startswith("slurm_rl.")}
    context.set_forkserver_preload(["slurm_rl.rewards.worker", *sorted(modules)])
    return context
