"""Data-parallel workers as one: work is spread over them, results come back in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.math.packing import distribute
from slurm_rl.math.sequences import FloatArray, TrainSequence
from slurm_rl.math.sharing import count_shared, unite
from slurm_rl.rl.workers.cluster import Actor, Cluster

if TYPE_CHECKING:
    from slurm_rl.engine.row_check import RowCheck


class WorkerGroup:
    """The ranks of one engine.

    Args:
        name: of the model, for errors: `policy`, `critic`.
        share_prompts: the workers read the prompt of neighbours once, so these stay together.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: Sequence[Actor],
        micro_batch_tokens: int,
        timeout_s: float,
        name: str,
        share_prompts: bool = False,
    ) -> None:
        self.cluster, self.workers, self.name = cluster, workers, name
        self.micro_batch_tokens, self.timeout_s = micro_batch_tokens, timeout_s
        self.share_prompts = share_prompts
        self.packed = True
        """Several sequences stand in one row; else padding counts in the budget of a micro-batch."""

    def note_rows(self, checks: Sequence[RowCheck]) -> RowCheck:
        """Take what the workers found of rows; returns the one that is told of."""
        worst = min(checks, key=lambda check: check.packed)
        self.packed = self.packed and worst.packed
        return worst

    def save(self, folder: Path, *, background: bool) -> list[Path]:
        """Save the model; the files that workers are still writing, from a copy, when this returns."""
        pending = self.call(f"saving the {self.name}", lambda _, it: it.save.remote(folder, background))
        return [path for paths in pending for path in paths]

    def load(self, folder: Path) -> None:
        self.call(f"loading the {self.name}'s checkpoint", lambda _, it: it.load.remote(folder))

    def call(self, what: str, start: Callable[[int, Any], Any], actors: Sequence[Actor] | None = None) -> list[Any]:
        """What each actor returns; all workers, unless others are named."""
        calls = [(actor, start(rank, actor.handle)) for rank, actor in enumerate(actors or self.workers)]
        # Weights may be half changed while these run; a stop signal waits for their end.
        return self.cluster.gather(calls, timeout_s=self.timeout_s, what=what, stoppable=False)

    def compute(
        self,
        sequences: Sequence[TrainSequence],
        what: str,
        start: Callable[[Any, Any], Any],
        actors: Sequence[Actor] | None = None,
    ) -> list[FloatArray]:
        """One array a sequence, in the order of the sequences."""
        places = self._places(sequences, len(actors or self.workers))
        shares = self.spread(sequences, len(places))
        results = self.call(what, lambda rank, it: start(it, shares[rank]), actors)
        found: list[Any] = [None] * len(sequences)
        for indices, arrays in zip(places, results, strict=True):
            for index, array in zip(
                (i for batch in indices for i in batch), (a for batch in arrays for a in batch), strict=True
            ):
                found[index] = array
        return found

    def spread(
        self, sequences: Sequence[TrainSequence], num_parts: int | None = None
    ) -> list[list[list[TrainSequence]]]:
        """Micro-batches by rank."""
        places = self._places(sequences, num_parts or len(self.workers))
        return [[[sequences[i] for i in batch] for batch in share] for share in places]

    def _places(self, sequences: Sequence[TrainSequence], num_parts: int) -> list[list[list[int]]]:
        lengths = [len(sequence.token_ids) for sequence in sequences]
        if not self.share_prompts:
            return distribute(lengths, num_parts, self.micro_batch_tokens, padded=not self.packed)
        units, tokens = unite(lengths, count_shared(sequences), self.micro_batch_tokens)
        places = distribute(tokens, num_parts, self.micro_batch_tokens)
        return [[[index for unit in batch for index in units[unit]] for batch in share] for share in places]
