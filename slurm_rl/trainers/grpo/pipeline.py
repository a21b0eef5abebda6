"""Batches in flight: sampled and scored while the policy trains on older ones.

With `rollout.max_off_policy_steps` k, step t trains on a batch sampled with the weights of step t - k (with those of
step 0 while t < k). At k = 0 the batch of step t is requested in step t: the synchronous loop. The schedule does not
depend on time, so every k repeats in every digit. A checkpoint holds the batches in flight (rollouts.json), because
their weights are lost on resume. Dynamic sampling requests further prompts of a step in that step, after the batches in
flight and with newer weights. With `rollout.inflight_weight_updates` batches overlap in an engine and weights change
between tokens, so k is a bound and the version of a token depends on time.

    step t:  start(t + k) -> take(t) -> train -> send weights t + 1, which an engine loads after batch t + k
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.data.groups import Branch, Details, Group, Trajectory, Turn, with_calls
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import StopRequested, TrainingError
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.run_dir.run_dir import write_json

ROLLOUTS_FILE = "rollouts.json"

Ticket = TypeVar("Ticket")


@dataclass(frozen=True)
class Batch:
    """Scored groups of one step, with their times."""

    groups: list[Group]
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; measured in another thread than the loop's unless k is 0."""


class RolloutPipeline(Generic[Ticket]):
    """Batches by step.

    Args:
        start: sends the requests of a step's batch and returns at once; called in the loop's thread, so that engines
            get requests and weights in one order.
        finish: waits for such a batch and scores it. With a number of seconds it ignores stop signals for that long;
            with None it raises at a stop signal.
        staleness: k.
        num_steps: no batch is requested from this step on.
        is_journalled: batches in flight resume from the turn log, so checkpoints do not wait for them.
    """

    def __init__(
        self,
        start: Callable[[int], Ticket],
        finish: Callable[[Ticket, float | None], Batch],
        *,
        staleness: int,
        num_steps: int,
        is_journalled: bool = False,
    ) -> None:
        self._start, self._finish, self.is_journalled = start, finish, is_journalled
        self.staleness, self.num_steps = staleness, num_steps
        self._entries: dict[int, tuple[Ticket, Future[Batch]]] = {}
        self._done: dict[int, Batch] = {}
        # One thread: batches are scored in order.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="rollout")

    def take(self, step: int) -> Batch:
        """Request the batches that may be in flight during this step, then return the step's batch."""
        for ahead in range(step, min(step + self.staleness, self.num_steps - 1) + 1):
            if ahead not in self._entries and ahead not in self._done:
                ticket = self._start(ahead)
                self._entries[ahead] = ticket, self._threads.submit(self._finish, ticket, None)
        if step in self._done:
            return self._done.pop(step)
        batch = self._entries[step][1].result()
        del self._entries[step]
        return batch

    def draw(self, start: Callable[[], Ticket]) -> Batch:
        """Request another batch after those in flight.

        Args:
            start: sends its requests, in the loop's thread.
        """
        return self._threads.submit(self._finish, start(), None).result()

    def put_back(self, step: int, batch: Batch) -> None:
        """Return the taken batch to the queue, because its step was interrupted."""
        self._done[step] = batch

    def settle(self, within_s: float) -> dict[int, list[Group]]:
        """Wait for the batches in flight, for a checkpoint; they stay in the queue.

        A batch interrupted by a stop signal has `within_s` seconds to end; otherwise it is left out, and sampled again
        with newer weights.
        """
        if self.is_journalled:
            return {}
        self._let_end(within_s)
        self._done |= {step: future.result() for step, (_, future) in sorted(self._entries.items())}
        self._entries.clear()
        return {step: batch.groups for step, batch in sorted(self._done.items())}

    def wait(self, within_s: Callable[[], float]) -> None:
        """Wait until nothing is in flight; errors are raised when a batch is taken.

        A batch interrupted by a stop signal must not continue with newer weights, so it ends first, as for a
        checkpoint.

        Args:
            within_s: returns the seconds that it may take after the stop; called only for such a batch.
        """
        if any(isinstance(future.exception(), StopRequested) for _, future in self._entries.values()):
            self._let_end(within_s())

    def _let_end(self, within_s: float) -> None:
        """Wait for batches in flight; an interrupted batch is dropped after its time."""
        deadline = time.monotonic() + within_s
        for step, (ticket, future) in sorted(self._entries.items()):
            if isinstance(future.exception(), StopRequested):
                del self._entries[step]
                with contextlib.suppress(TrainingError):
                    self._done[step] = self._finish(ticket, max(deadline - time.monotonic(), 0.0))

    def restore(self, batches: dict[int, list[Group]]) -> None:
        """Restore the batches of a checkpoint."""
        self._done = {step: Batch(groups) for step, groups in batches.items()}

    def close(self) -> None:
        """Close without waiting; the engines end with the run."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def staleness_metrics(groups: Sequence[Group], version: int, *, mixed: bool) -> dict[str, float]:
    """Return the staleness metrics of a batch; `mixed`: also the number of completions with several weight versions."""
    completions = [completion for group in groups for completion in group.completions]
    # Steps between the weights that sampled a token and the policy at `version`.
    ages = [version - token for completion in completions for token in completion.versions()]
    found = {"rollout/staleness": sum(ages) / max(len(ages), 1)}
    if mixed:
        found["rollout/mixed_weights"] = sum(
            bool(it.details and it.details.token_versions) for it in completions
        ) / len(completions)
    return found


def save_rollouts(folder: Path, batches: dict[int, list[Group]]) -> None:
    """Write rollouts.json if there are batches in flight."""
    if batches:
        rows = {str(step): [asdict(group) for group in groups] for step, groups in batches.items()}
        write_json(folder / ROLLOUTS_FILE, rows)


def load_rollouts(folder: Path) -> dict[int, list[Group]]:
    """Read the batches that `save_rollouts` wrote; JSON keeps every digit of the numbers."""
    path = folder / ROLLOUTS_FILE
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {int(step): [parse_group(group) for group in groups] for step, groups in rows.items()}


def parse_group(tree: dict[str, Any]) -> Group:
    """Rebuild a group from `asdict`."""
    results = [RewardResult(**{**result, "item": RewardItem(**result["item"])}) for result in tree["results"]]
    completions = [Trajectory(**{**one, "details": _parse_details(one["details"])}) for one in tree["completions"]]
    images = tuple(ImageSpan(**span) for span in tree["prompt"].get("images", ()))
    return Group(EncodedPrompt(**{**tree["prompt"], "images": images}), completions, results)


def _parse_details(tree: dict[str, Any] | None) -> Details | None:
    if tree is None:
        return None
    turns = [Turn(**with_calls(turn)) for turn in tree["turns"]]
    return Details(**{**with_calls(tree), "turns": turns, "branches": [Branch(**one) for one in tree["branches"]]})
