"""Scores requests that come at any time from many threads, so that nobody waits for another's hung item.

    with RewardStream(table, weights, num_workers=4, timeout_s=10, start_timeout_s=120) as stream:
        future = stream.submit(items)                             # from any thread
        results = future.result()                                 # one result an item, in order

`Scoring` is one call; this is a loop that never ends. Items of all requests wait in one line and go to the
workers in chunks as large as the line is long, so a busy service pays for few messages and an idle one answers
at once. As in `Scoring`, the items of a chunk that crashed or hung are run again one by one; such suspects never
hold the last worker, so new requests are scored while each of the others waits for its deadline.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

from slurm_rl.errors import DataError, RewardError
from slurm_rl.rewards.processes import Outcomes, VerifierProcesses
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rewards.scoring import BUDGET_SHARE, MAX_RESTARTS, build_result, keeps_breaking, read_outcomes

_CHUNK_SIZE = 64


@dataclass(eq=False)
class _Request:
    items: Sequence[RewardItem]
    results: dict[int, RewardResult] = field(default_factory=dict)
    future: Future[list[RewardResult]] = field(default_factory=Future)


@dataclass(frozen=True)
class _Unit:
    """One item of a request."""

    request: _Request
    position: int

    @property
    def item(self) -> RewardItem:
        return self.request.items[self.position]


@dataclass(frozen=True)
class _Task:
    units: list[_Unit]
    is_suspect: bool
    submitted_at: float


class RewardStream:
    """Worker processes with a line in front of them; a context manager.

    Args:
        table: verifier name to `module:function` or `file.py:function`.
        weights: name of a score to its weight in the reward.
        num_workers: processes.
        timeout_s: deadline of one item.
        start_timeout_s: deadline of all processes to be up.
    """

    def __init__(
        self,
        table: Mapping[str, str],
        weights: Mapping[str, float],
        *,
        num_workers: int,
        timeout_s: float,
        start_timeout_s: float,
    ) -> None:
        self._processes = VerifierProcesses(num_workers, table, start_timeout_s)
        self._weights, self._num_workers, self._timeout_s = dict(weights), num_workers, timeout_s
        self._budget_s = timeout_s * BUDGET_SHARE
        self._lock = threading.Lock()
        self._waiting: deque[_Unit] = deque()
        self._suspects: deque[_Unit] = deque()
        self._pending: dict[Future[Outcomes], _Task] = {}
        self._restarts = 0
        self._is_open = False
        self._started: Future[None] = Future()
        self.ended: Future[None] = Future()
        """Done when the loop has ended: with the RewardError that ended it, or with None after `__exit__`."""
        # pebble's pool is used from one thread, the loop's, from its start to its stop.
        self._thread = threading.Thread(target=self._run, name="reward-stream", daemon=True)

    def __enter__(self) -> RewardStream:
        """Start and warm the workers; RewardError when they are not up in time."""
        self._thread.start()
        self._started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._processes.wake()
        self._thread.join()

    @property
    def num_waiting(self) -> int:
        """Items that no worker has begun."""
        return len(self._waiting) + len(self._suspects)

    def submit(self, items: Sequence[RewardItem]) -> Future[list[RewardResult]]:
        """Put items in the line and return at once.

        Returns:
            A future of one result an item, in order. It raises DataError when an answer is one that nothing
            could be judged by, and RewardError when the stream ended first.
        """
        request = _Request(list(items))
        # From here on nobody can cancel it: the loop alone says how it ends.
        request.future.set_running_or_notify_cancel()
        if not request.items:
            request.future.set_result([])
            return request.future
        with self._lock:
            if not self._is_open:
                request.future.set_exception(_is_closed())
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
        cause: BaseException | None = None
        try:
            while self._is_open:
                self._fill()
                self._settle_next()
        except BaseException as error:
            cause = error
        self._close()
        self._processes.stop()
        self._abandon(cause or _is_closed())
        if cause is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(cause)

    def _close(self) -> None:
        with self._lock:
            self._is_open = False

    def _fill(self) -> None:
        """Give the workers what they can take: suspects one by one, the line in even chunks."""
        # One task more than workers, so that none is idle while the next is on its way.
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

    def _submit(self, units: list[_Unit], *, is_suspect: bool) -> None:
        units = [unit for unit in units if not unit.request.future.done()]
        if not units:
            return
        deadline_s = self._timeout_s + (self._budget_s if len(units) > 1 else 0)
        items = [unit.item for unit in units]
        future = self._processes.submit(items, budget_s=self._budget_s, deadline_s=deadline_s)
        self._pending[future] = _Task(units, is_suspect, time.monotonic())

    def _settle_next(self) -> None:
        """Wait for a task or a new request; keep what was scored, and line up again what was not."""
        future = self._processes.next_done(self._patience_s())
        if future is None:
            self._restart()
            return
        task = self._pending.pop(future, None)
        if task is None:  # a new request, or the end
            return
        self._restarts = 0
        outcomes = read_outcomes(future, len(task.units), self._timeout_s)
        for unit, outcome in zip(task.units, outcomes, strict=False):
            try:
                result = build_result(unit.item, outcome, self._weights)
            except DataError as error:
                _finish(unit.request, error)
            else:
                unit.request.results[unit.position] = result
                _finish_when_whole(unit.request)
        left = task.units[len(outcomes) :]
        if outcomes:  # the worker stopped early: its items are slow, and none of them is to blame
            with self._lock:
                self._waiting.extendleft(reversed(left))
        else:
            self._suspects.extend(left)

    def _patience_s(self) -> float:
        """How long the oldest task may still take; beyond it, pebble has lost it."""
        oldest = next(iter(self._pending.values()), None)
        if oldest is None:
            return math.inf
        # It may have waited for a worker, which was busy or being replaced.
        limit_s = 2 * (self._timeout_s + self._budget_s) + self._processes.start_timeout_s
        return max(0.0, oldest.submitted_at + limit_s - time.monotonic())

    def _restart(self) -> None:
        """Start new processes and submit again what had no answer; nobody is to blame yet."""
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise keeps_breaking(self._restarts)
        self._processes.restart()
        lost, self._pending = list(self._pending.values()), {}
        for task in lost:
            self._submit(task.units, is_suspect=task.is_suspect)

    def _abandon(self, cause: BaseException) -> None:
        pending = itertools.chain.from_iterable(task.units for task in self._pending.values())
        for unit in itertools.chain(self._waiting, self._suspects, pending):
            _finish(unit.request, cause)


def _take(line: deque[_Unit], count: int) -> list[_Unit]:
    return [line.popleft() for _ in range(count)]


def _finish(request: _Request, error: BaseException) -> None:
    if not request.future.done():
        request.future.set_exception(error)


def _finish_when_whole(request: _Request) -> None:
    if len(request.results) == len(request.items) and not request.future.done():
        request.future.set_result([request.results[position] for position in range(len(request.items))])


def _is_closed() -> RewardError:
    return RewardError("the reward workers must be running", seen="they were stopped", action="send the items again")
