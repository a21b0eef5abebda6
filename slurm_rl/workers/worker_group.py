"""Data-parallel workers as one: a method is called on all ranks, work is spread over them, results come in order.

To train with another engine, write a class with the methods of `TrainWorker` and start it in build.py. All ranks get a
call together, because gathering sharded weights and reducing gradients take every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.algorithms.packing import count_shared, distribute, unite
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.workers.ray_driver import Actor, Cluster

if TYPE_CHECKING:
    from slurm_rl.models.policy import PolicyEngine
    from slurm_rl.models.row_check import RowCheck


MicroBatches = Sequence[Sequence[TrainSequence]]


@dataclass(frozen=True)
class WorkerRank:
    """Which of its peers a worker is, and where they meet."""

    rank: int
    world_size: int
    master_address: str
    master_port: int
    num_threads: int | None


class TrainWorker:
    """Rank of a trained model, policy or critic. It has more methods, one per kind of step:

    * `train_<name>(micro_batches, ..., lr) -> totals`: one optimizer step. Totals are sums over the tokens of all
    ranks, equal on each; names that end in `/max` are maxima.
    * `<name>_logprobs(micro_batches)`, `values(micro_batches)`: [num_trained] float32 by micro-batch and sequence.
    """

    engine: PolicyEngine

    def ready(self) -> bool:
        """Returns once the actor is up, with its model where that is loaded at the start."""
        return True

    def check_rows(self) -> RowCheck:
        """How the model's sequences are laid out in rows: several in one, or each in its own."""
        return self.engine.rows

    def save(self, folder: Path, background: bool) -> list[Path]:
        """Write this rank's part of model and optimizer.

        Returns:
            files of this rank that are still being written, from copies, when it returns; empty unless `background`.
        """
        return self.engine.save(folder, background=background)

    def load(self, folder: Path) -> None:
        """Resume from the files of `save`, on any number of ranks."""
        self.engine.load(folder)


class WorkerGroup:
    """The ranks of one model; their methods are documented in `TrainWorker`.

    Args:
        name: `policy` or `critic`, for errors.
        prefix_sharing: workers compute the prompt of neighbours once, so neighbours stay together.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: Sequence[Actor],
        micro_batch_tokens: int,
        timeout_s: float,
        name: str,
        prefix_sharing: bool = False,
    ) -> None:
        self.cluster, self.workers, self.name = cluster, workers, name
        self.micro_batch_tokens, self.timeout_s = micro_batch_tokens, timeout_s
        self.prefix_sharing = prefix_sharing
        self.packed = True
        """Several sequences share one row; else padding counts in the budget of a micro-batch."""

    def call(self, method: str, *args: Any) -> list[Any]:
        """Return the result of `method(*args)` on each rank.

        Raises:
            TrainingError: a worker died, raised, or did not answer before the deadline; the message names it.
        """
        return self._gather(method, [args] * len(self.workers))

    def train(self, method: str, sequences: Sequence[TrainSequence], *args: Any) -> dict[str, float]:
        """One optimizer step on all ranks together; every rank returns the same totals."""
        totals: dict[str, float] = self._gather(method, [(share, *args) for share in self.spread(sequences)])[0]
        return totals

    def compute(self, method: str, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """One array a sequence, in the order of the sequences."""
        places = self._places(sequences)
        results = self._gather(method, [(share,) for share in self.spread(sequences)])
        found: list[Any] = [None] * len(sequences)
        indices, arrays = ([one for share in all_ for batch in share for one in batch] for all_ in (places, results))
        for index, array in zip(indices, arrays, strict=True):
            found[index] = array
        return found

    def deal(self, method: str, items: Sequence[Any]) -> list[Any]:
        """One result an item; dealt out in turn, so that neighbours, which are alike, go to different ranks."""
        num_workers = len(self.workers)
        shares = self._gather(method, [(items[rank::num_workers],) for rank in range(num_workers)])
        found: list[Any] = [None] * len(items)
        for rank, outcomes in enumerate(shares):
            found[rank::num_workers] = outcomes
        return found

    def spread(self, sequences: Sequence[TrainSequence]) -> list[list[list[TrainSequence]]]:
        """Micro-batches by rank."""
        return [[[sequences[i] for i in batch] for batch in share] for share in self._places(sequences)]

    def note_rows(self, checks: Sequence[RowCheck]) -> RowCheck:
        """Record packing checks of all ranks; return the worst."""
        worst = min(checks, key=lambda check: check.packed)
        self.packed = self.packed and worst.packed
        return worst

    def _gather(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        calls = [
            (worker, getattr(worker.handle, method).remote(*each))
            for worker, each in zip(self.workers, arguments, strict=True)
        ]
        what = f"{method.replace('_', ' ')} of the {self.name}"
        # Weights may be half changed while these run; a stop signal waits for their end.
        return self.cluster.gather(calls, timeout_s=self.timeout_s, what=what, stoppable=False)

    def _places(self, sequences: Sequence[TrainSequence]) -> list[list[list[int]]]:
        lengths = [len(sequence.token_ids) for sequence in sequences]
        num_parts = len(self.workers)
        if not self.prefix_sharing:
            return distribute(lengths, num_parts, self.micro_batch_tokens, padded=not self.packed)
        units, tokens = unite(lengths, count_shared(sequences), self.micro_batch_tokens)
        places = distribute(tokens, num_parts, self.micro_batch_tokens)
        return [[[index for unit in batch for index in units[unit]] for batch in share] for share in places]
