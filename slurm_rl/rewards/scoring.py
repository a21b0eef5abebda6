"""One call of `RewardPool.score`: which items are in which task, and what came back of each.

Items travel in chunks, because a message an item would cost more than most verifiers. A chunk that
crashes or hangs does not say which item did it, so its items are run again one by one; only an item
that fails alone is a failure. A worker that has spent its budget returns early and the rest of the
chunk goes on one by one, so slow items never look like one hung item:

    budget = timeout_s / 10        deadline of a chunk = timeout_s + budget, of one item = timeout_s

Every item of a chunk starts within the budget, so each had at least timeout_s when the chunk is ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from pebble import ProcessExpired

from slurm_rl.errors import DataError, RewardError
from slurm_rl.rewards.processes import Outcomes, VerifierProcesses
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult

MAX_RESTARTS = 3
"""Broken pools in a row, without one score between them, that are put up with."""
BUDGET_SHARE = 1 / 10


class Scoring:
    """Scores `items`, once, with `run`.

    Args:
        processes: started workers.
        weights: verifier name to weight.
        timeout_s: deadline of one item.
    """

    def __init__(
        self,
        processes: VerifierProcesses,
        items: Sequence[RewardItem],
        weights: Mapping[str, float],
        timeout_s: float,
    ) -> None:
        self._processes = processes
        self._items = items
        self._weights = weights
        self._timeout_s = timeout_s
        self._budget_s = timeout_s * BUDGET_SHARE
        self._results: dict[int, RewardResult] = {}
        self._pending: dict[Future[Outcomes], list[int]] = {}
        self._restarts = 0

    def run(self, chunk_size: int) -> list[RewardResult]:
        """Return one result an item, in order. Raises DataError and RewardError as `RewardPool.score`."""
        positions = list(range(len(self._items)))
        for first in range(0, len(positions), chunk_size):
            self._submit(positions[first : first + chunk_size])
        try:
            while self._pending:
                self._settle_next()
        finally:
            for future in self._pending:  # left only when something was raised
                future.cancel()
        return [self._results[position] for position in positions]

    def _submit(self, positions: list[int]) -> None:
        deadline_s = self._timeout_s + (self._budget_s if len(positions) > 1 else 0)
        items = [self._items[position] for position in positions]
        future = self._processes.submit(items, budget_s=self._budget_s, deadline_s=deadline_s)
        self._pending[future] = positions

    def _settle_next(self) -> None:
        """Wait for one task, keep what it scored and submit what it left undone."""
        # The workers may first have to be replaced, which takes as long as a start.
        future = self._processes.next_done(self._timeout_s + self._budget_s + self._processes.start_timeout_s)
        if future is None:
            self._restart()
            return
        positions = self._pending.pop(future, None)
        if positions is None:  # of an earlier call that ended in an exception
            return
        self._restarts = 0
        outcomes = read_outcomes(future, len(positions), self._timeout_s)
        for position, outcome in zip(positions, outcomes, strict=False):
            self._results[position] = build_result(self._items[position], outcome, self._weights)
        for position in positions[len(outcomes) :]:
            self._submit([position])

    def _restart(self) -> None:
        """Start new processes and submit again what had no answer; nobody is to blame yet."""
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise keeps_breaking(self._restarts)
        self._processes.restart()
        lost, self._pending = list(self._pending.values()), {}
        for positions in lost:
            self._submit(positions)


def read_outcomes(future: Future[Outcomes], num_items: int, timeout_s: float) -> Outcomes:
    """Return what became of the first items of a task; of none when a chunk gave no answer."""
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


def build_result(
    item: RewardItem, outcome: dict[str, float] | Failure | DataError, weights: Mapping[str, float]
) -> RewardResult:
    """The reward of one item: the weighted sum of its scores. Raises the DataError that an outcome is."""
    if isinstance(outcome, DataError):
        raise outcome
    if isinstance(outcome, Failure):
        return RewardResult(item=item, value=None, failure=outcome.cause, detail=outcome.detail)
    value = sum(weights.get(name, 0.0) * score for name, score in outcome.items())
    return RewardResult(item=item, value=value, parts=outcome)


def keeps_breaking(num_restarts: int) -> RewardError:
    """What is raised when new processes do not help."""
    return RewardError(
        "the reward workers must stay alive",
        seen=f"{num_restarts} broken pools without one score between them",
        action="look for the kernel ending processes for memory (dmesg), and give the job more",
    )
