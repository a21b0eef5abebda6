"""What the loop asks of a model's ranks, written down: each runs as a Ray actor, and a `WorkerGroup` calls them all.

To train with another engine, write a class with the methods of `TrainWorker` and start it in build.py. All ranks get a
call together, because gathering sharded weights and reducing gradients take every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_rl.math.sequences import TrainSequence

if TYPE_CHECKING:
    from slurm_rl.engine.policy import PolicyEngine
    from slurm_rl.engine.row_check import RowCheck

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
    """A rank of a model that learns: of the policy, of the critic. It has further methods, one a kind of step:

    * `train_<what>(micro_batches, ..., lr) -> totals`: one optimizer step. Totals are sums over the tokens of all
      ranks, the same on each; names that end in `/max` are maxima.
    * `<what>_logprobs(micro_batches)`, `values(micro_batches)`: [num_trained] float32 by micro-batch and sequence.
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
        """Go on from what `save` wrote, on this number of ranks or another."""
        self.engine.load(folder)
