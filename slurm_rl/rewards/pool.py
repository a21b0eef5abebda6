"""Score completions in worker processes, so that a verifier that hangs or crashes fails one item.

    with RewardPool(config.reward) as pool:
        results = pool.score(items)                               # one result per item, in order
        future = pool.submit(items)                               # the same from any thread
    FailureWatch(config.reward.max_failure_rate).check(results)   # RewardError if too many failed

Items of all requests share one queue; workers take chunks that grow with it. The items of a chunk that crashed or hung
are retried one by one, never in the last free worker. An item fails when its worker dies twice, as the first may have
been killed from outside. A crashed chunk of a reward model is first retried unchanged, because the last digits of a
score depend on the batch. A worker that has spent its budget returns early, so that slow items do not look like a hang:

    budget = timeout_s / 10        deadline of a chunk = timeout_s + budget, of one item = timeout_s

Every item of a chunk starts within the budget, so each has at least timeout_s.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from pebble import ProcessExpired

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import RewardError
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult, build_result
from slurm_rl.rewards.verifiers import choose_verifiers
from slurm_rl.rewards.worker_processes import Outcomes, VerifierProcesses

_CHUNK_SIZE = 64
_MAX_RESTARTS = 3
"""Tolerated number of consecutive broken pools without a score."""
_BUDGET_SHARE = 1 / 10


@dataclass(eq=False)
class _Request:
    items: Sequence[RewardItem]
    results: dict[int, RewardResult] = field(default_factory=dict)
    future: Future[list[RewardResult]] = field(default_factory=Future)


@dataclass(frozen=True)
class _Unit:
    request: _Request
    position: int
    has_crashed: bool = False
    """A worker died with this item alone."""

    @property
    def item(self) -> RewardItem:
        return self.request.items[self.position]


@dataclass(frozen=True)
class _Task:
    units: list[_Unit]
    is_suspect: bool
    is_again: bool
    """The same units have crashed together before."""
    submitted_at: float


class RewardPool:
    """Worker processes with a queue; a context manager. `table` replaces the verifiers in tests."""

    def __init__(self, config: RewardConfig, table: Mapping[str, str] | None = None) -> None:
        chosen, self._weights = choose_verifiers(config, table)
        self._processes = VerifierProcesses(config.num_workers, chosen, config.start_timeout_s)
        self._num_workers, self._timeout_s = config.num_workers, config.timeout_s
        self._has_model = config.model.path is not None
        self._budget_s = config.timeout_s * _BUDGET_SHARE
        self._lock = threading.Lock()
        self._waiting: deque[_Unit] = deque()
        self._suspects: deque[_Unit] = deque()
        self._pending: dict[Future[Outcomes], _Task] = {}
        self._restarts = 0
        self._cause: BaseException | None = None
        self._is_open = False
        self._started: Future[None] = Future()
        self.ended: Future[None] = Future()
        """Done when the loop has ended: with its RewardError, or with None after `__exit__`."""
        # pebble's pool is used only from the loop's thread.
        self._thread = threading.Thread(target=self._run, name="reward-pool", daemon=True)

    def __enter__(self) -> RewardPool:
        self._thread.start()
        self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._processes.wake()
        self._thread.join()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._suspects)

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Return one result per item, in order and in bounded time.

        Raises:
            RewardError: the processes kept dying without a score.
        """
        return self.submit(items).result()

    def submit(self, items: Sequence[RewardItem]) -> Future[list[RewardResult]]:
        """Queue items and return a future with the result or exception of `score`."""
        request = _Request(list(items))
        # The future can no longer be cancelled; only the loop completes it.
        request.future.set_running_or_notify_cancel()
        if not request.items:
            request.future.set_result([])
            return request.future
        with self._lock:
            if not self._is_open:
                request.future.set_exception(self._cause or _is_closed())
                return request.future
            self._waiting.extend(_Unit(request, position) for position in range(len(request.items)))
        self._processes.wake()
        return request.future

    # ---- the loop's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._processes.start()
        except BaseException as error:
            self.ended.set_result(None)
            self._started.set_exception(error)
            return
        self._is_open = True
        self._started.set_result(None)
        try:
            while self._is_open:
                self._fill()
                self._settle_next()
        except BaseException as error:
            self._cause = error
        self._close()
        self._processes.stop()
        pending = itertools.chain.from_iterable(task.units for task in self._pending.values())
        for unit in itertools.chain(self._waiting, self._suspects, pending):
            _finish(unit.request, self._cause or _is_closed())
        if self._cause is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(self._cause)

    def _close(self) -> None:
        with self._lock:
            self._is_open = False

    def _fill(self) -> None:
        """Submit tasks to the workers: retried items one by one, the queue in even chunks."""
        # One more task than workers, so that no worker waits for the next one.
        while len(self._pending) <= self._num_workers:
            num_suspects = sum(task.is_suspect for task in self._pending.values())
            if self._suspects and num_suspects < max(1, self._num_workers - 1):
                self._submit(_take(self._suspects, 1), is_suspect=True)
                continue
            with self._lock:
                size = min(_CHUNK_SIZE, math.ceil(len(self._waiting) / self._num_workers))
                units = _take(self._waiting, size)
            if not units:
                return
            self._submit(units, is_suspect=False)

    def _submit(self, units: list[_Unit], *, is_suspect: bool, is_again: bool = False) -> None:
        units = [unit for unit in units if not unit.request.future.done()]
        if not units:
            return
        deadline_s = self._timeout_s + (self._budget_s if len(units) > 1 else 0)
        items = [unit.item for unit in units]
        future = self._processes.submit(items, budget_s=self._budget_s, deadline_s=deadline_s)
        self._pending[future] = _Task(units, is_suspect, is_again, time.monotonic())

    def _settle_next(self) -> None:
        """Wait for a task or a new request; store scored items and requeue the others."""
        future = self._processes.next_done(self._patience_s())
        if future is None:
            self._restart()
            return
        task = self._pending.pop(future, None)
        if task is None:  # a new request, or the end
            return
        self._restarts = 0
        if isinstance(future.exception(), ProcessExpired):
            [*others, last] = task.units
            if others and self._has_model and not task.is_again:
                self._submit(task.units, is_suspect=False, is_again=True)
                return
            if not others and not last.has_crashed:
                self._suspects.append(replace(last, has_crashed=True))
                return
        outcomes = _read_outcomes(future, len(task.units), self._timeout_s)
        for unit, outcome in zip(task.units, outcomes, strict=False):
            request = unit.request
            request.results[unit.position] = build_result(unit.item, outcome, self._weights)
            if len(request.results) == len(request.items) and not request.future.done():
                request.future.set_result([request.results[place] for place in range(len(request.items))])
        left = task.units[len(outcomes) :]
        if outcomes:  # the worker stopped early: its items are slow, not faulty
            with self._lock:
                self._waiting.extendleft(reversed(left))
        else:
            self._suspects.extend(left)

    def _patience_s(self) -> float:
        """Return the remaining seconds of the oldest task; after that, pebble has lost it."""
        oldest = next(iter(self._pending.values()), None)
        if oldest is None:
            return math.inf
        # It may have waited for a busy or restarting worker.
        limit_s = 2 * (self._timeout_s + self._budget_s) + self._processes.start_timeout_s
        return max(0.0, oldest.submitted_at + limit_s - time.monotonic())

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            raise RewardError(
                "the reward workers must stay alive",
                seen=f"{self._restarts} consecutive broken pools without a score",
                action="check dmesg for processes killed for memory, and give the job more memory",
            )
        self._processes.restart()
        lost, self._pending = list(self._pending.values()), {}
        for task in lost:
            self._submit(task.units, is_suspect=task.is_suspect, is_again=task.is_again)


def _read_outcomes(future: Future[Outcomes], num_items: int, timeout_s: float) -> Outcomes:
    """Return the outcomes of the first items of a task; [] if a chunk gave no answer."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, TimeoutError):
        failure = Failure("hang", f"no score within {timeout_s:g} s")
    elif isinstance(error, ProcessExpired):
        failure = Failure("crash", f"the process died with exit code {error.exitcode}")
    else:
        raise error
    return [failure] if num_items == 1 else []


def _take(line: deque[_Unit], count: int) -> list[_Unit]:
    return [line.popleft() for _ in range(count)]


def _finish(request: _Request, error: BaseException) -> None:
    if not request.future.done():
        request.future.set_exception(error)


def _is_closed() -> RewardError:
    return RewardError("the reward workers must be running", seen="they were stopped", action="send the items again")
