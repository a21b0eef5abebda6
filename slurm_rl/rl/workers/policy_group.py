"""All policy workers as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.train import OptimConfig
from slurm_rl.math.sequences import FloatArray, TrainSequence
from slurm_rl.rl.workers.cluster import Actor, Cluster
from slurm_rl.rl.workers.worker_group import WorkerGroup

if TYPE_CHECKING:
    from slurm_rl.engine.row_check import RowCheck


class PolicyGroup(WorkerGroup):
    """The data-parallel ranks of the policy."""

    def __init__(
        self,
        cluster: Cluster,
        workers: Sequence[Actor],
        model_path: str,
        micro_batch_tokens: int,
        timeout_s: float,
        *,
        references: Sequence[Actor] = (),
        share_prompts: bool = False,
    ) -> None:
        """Args:
        references: actors that hold the reference apart from the policy; empty: its workers hold it.
        """
        super().__init__(cluster, workers, micro_batch_tokens, timeout_s, "policy", share_prompts)
        self.references, self.model_path = references or workers, model_path

    @property
    def holds_reference(self) -> bool:
        """The policy's own processes answer for the reference."""
        return self.references is self.workers

    def train_policy(
        self, sequences: Sequence[TrainSequence], algorithm: AlgorithmConfig, lr: float
    ) -> dict[str, float]:
        """One optimizer step; every rank returns the same totals."""
        shares = self.spread(sequences)
        return self.call("training", lambda rank, it: it.train_policy.remote(shares[rank], algorithm, lr))[0]

    def train_answers(self, sequences: Sequence[TrainSequence], lr: float) -> dict[str, float]:
        shares = self.spread(sequences)
        return self.call("the warm-up", lambda rank, it: it.train_answers.remote(shares[rank], lr))[0]

    def reference_logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """One array a sequence, in the order of the sequences."""
        return self.compute(
            sequences, "reference logprobs", lambda it, share: it.reference_logprobs.remote(share), self.references
        )

    def policy_logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """The same under the policy as it is."""
        return self.compute(sequences, "policy logprobs", lambda it, share: it.policy_logprobs.remote(share))

    def use_optimizer(self, optim: OptimConfig) -> None:
        self.call("a new optimizer", lambda _, it: it.use_optimizer.remote(optim))

    def check_rows(self) -> RowCheck:
        """What the policy's workers found of rows when they loaded it."""
        return self.note_rows(self.call("looking at rows", lambda _, it: it.check_rows.remote()))

    def load_reference(self, model_path: str) -> RowCheck:
        found = self.call("loading the reference", lambda _, it: it.load_reference.remote(model_path), self.references)
        return self.note_rows(found)

    def export(self, folder: Path) -> None:
        self.call("exporting the model", lambda _, it: it.export.remote(folder))

    def export_adapter(self, folder: Path) -> None:
        self.call("exporting the adapters", lambda _, it: it.export_adapter.remote(folder))
