"""Ranks of trained and frozen models as Ray actors, and their group as the driver sees it.

To train with another engine, write a class with the methods of `TrainWorker` and start it in trainers/grpo/build.py.
All ranks get each call together, because gathering sharded weights and reducing gradients are collective.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_rl.algorithms.packing import count_shared, distribute, unite
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import OptimConfig
from slurm_rl.workers.ray_driver import Actor, Cluster
from slurm_rl.workers.weight_sender import WeightSender

if TYPE_CHECKING:
    import torch

    from slurm_rl.models.frozen import FrozenModel
    from slurm_rl.models.policy import PolicyEngine
    from slurm_rl.models.row_check import RowCheck


MicroBatches = Sequence[Sequence[TrainSequence]]


@dataclass(frozen=True)
class WorkerRank:
    """Rank of a worker and rendezvous of its group."""

    rank: int
    world_size: int
    master_address: str
    master_port: int
    num_threads: int | None


class TrainWorker:
    """Rank of a trained model, policy or critic. Subclasses add methods:

    * `train(micro_batches, ..., lr) -> totals`: one optimizer step. Totals are sums over the tokens of all ranks, equal
    on each; names that end in `/max` are maxima.
    * `logprobs(micro_batches)`, `values(micro_batches)`: [num_trained] float32 by micro-batch and sequence.
    """

    engine: PolicyEngine

    def ready(self) -> bool:
        """Return once the actor is up."""
        return True

    def check_rows(self) -> RowCheck:
        """Return the row layout: several sequences per row, or one."""
        return self.engine.rows

    def save(self, folder: Path, background: bool) -> list[Path]:
        """Write this rank's part of model and optimizer.

        Returns:
            files that are still being written when it returns; empty unless `background`.
        """
        return self.engine.save(folder, background=background)

    def hash_files(self, files: Sequence[Path]) -> list[str]:
        """Return the hash of each file of a checkpoint, or the reason why it cannot be read."""
        from slurm_rl.models.checkpoint.store import hash_here

        return hash_here(files)

    def load(self, folder: Path) -> None:
        """Resume from the files of `save`, on any number of ranks."""
        self.engine.load(folder)


class ReferenceHolder:
    """Holds the reference: a frozen model that gives logprobs, the initial policy or `reference.path`."""

    config: RunConfig
    device: torch.device
    reference: FrozenModel | None = None

    def load_reference(self, model_path: str) -> RowCheck:
        """Load the reference and return its row layout."""
        from slurm_rl.models.frozen import FrozenModel

        config = self.config
        # model.init_from holds neither the warmed-up policy nor another model.
        is_other = config.warmup.num_steps or config.reference.path is not None
        model = config.model.model_copy(update={"init_from": None} if is_other else {})
        self.reference = FrozenModel(model_path, model, config.policy, config.rollout.temperature, self.device)
        return self.reference.rows

    def reference_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Return the logprobs of the trained tokens, [num_trained] float32 by micro-batch and sequence."""
        assert self.reference is not None
        return self.reference.compute_logprobs(micro_batches)


class PolicyWorker(TrainWorker, ReferenceHolder, WeightSender):
    """One rank of the policy, and of the reference when there is a KL term. Runs as a Ray actor."""

    def __init__(self, config: RunConfig, model_path: str, place: WorkerRank) -> None:
        from slurm_rl.models.distributed import init_process_group
        from slurm_rl.models.policy import PolicyEngine

        timeout_s = config.trainer.step_timeout_s
        init_process_group(place.rank, place.world_size, place.master_address, place.master_port, timeout_s)
        self.config = config
        self.engine = PolicyEngine(
            model_path,
            config.model,
            config.policy.model_copy(update={"num_workers": place.world_size, "num_threads": place.num_threads}),
            config.warmup.optim if config.warmup.num_steps else config.optim,
            temperature=config.rollout.temperature,
            seed=config.seed,
        )
        self.device = self.engine.device

    def use_optimizer(self, optim: OptimConfig) -> None:
        """Replace the optimizer by a fresh one over the same weights."""
        self.engine.backend.reset_optimizer(optim)

    def train(self, micro_batches: MicroBatches, algorithm: AlgorithmConfig, lr: float) -> dict[str, float]:
        """Take one optimizer step of the policy loss."""
        from slurm_rl.algorithms.policy_loss import build_policy_loss

        loss = build_policy_loss(algorithm, self.config.correction_kind)
        return self.engine.train(micro_batches, loss, lr, entropy_gradient=algorithm.entropy_coef > 0)

    def train_answers(self, micro_batches: MicroBatches, lr: float) -> dict[str, float]:
        """Take one supervised optimizer step at temperature 1."""
        from slurm_rl.algorithms.policy_loss import build_warmup_loss

        return self.engine.train(micro_batches, build_warmup_loss(), lr, temperature=1.0)

    def logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Return the logprobs of the trained tokens under the current policy."""
        return self.engine.compute_logprobs(micro_batches)

    def reference_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        if self.reference is None:
            # The base model without adapters is the reference.
            return self.engine.compute_logprobs(micro_batches, adapters=False)
        return super().reference_logprobs(micro_batches)

    def export(self, folder: Path) -> None:
        """Write the whole model or only the adapters in Hugging Face's layout, as configured."""
        self.engine.export(folder, adapters_apart=True)

    def export_model(self, folder: Path) -> None:
        """Write the whole model."""
        self.engine.export(folder)


class ReferenceWorker(ReferenceHolder):
    """Reference on its own nodes and GPUs. Runs as a Ray actor."""

    def __init__(self, config: RunConfig, num_threads: int | None) -> None:
        import torch

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.config = config.with_values(policy={"num_replicas": 1, "context_parallel": 1})  # a whole model
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def ready(self) -> bool:
        return True


class WorkerGroup:
    """The ranks of one model; see `TrainWorker` for their methods.

    Args:
        name: `policy` or `critic`, for errors.
        prefix_sharing: workers compute the prompt of neighbours once, so neighbours stay together.
        context: so many neighbouring workers share the tokens of each micro-batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        workers: Sequence[Actor],
        micro_batch_tokens: int,
        timeout_s: float,
        name: str,
        prefix_sharing: bool = False,
        context: int = 1,
    ) -> None:
        self.cluster, self.workers, self.name = cluster, workers, name
        self.micro_batch_tokens, self.timeout_s = micro_batch_tokens, timeout_s
        self.prefix_sharing, self.context = prefix_sharing, context
        self.packed = True
        """Whether several sequences share a row; otherwise padding counts in the budget of a micro-batch."""

    def call(self, method: str, *args: Any) -> list[Any]:
        """Return the result of `method(*args)` on each rank.

        Raises:
            TrainingError: a worker died, raised, or did not answer before the deadline; the message names it.
        """
        return self._gather(method, [args] * len(self.workers))

    def train(self, method: str, sequences: Sequence[TrainSequence], *args: Any) -> dict[str, float]:
        """Take one optimizer step on all ranks; return its totals."""
        totals: dict[str, float] = self._call_groups(method, self.spread(sequences), *args)[0]
        return totals

    def compute(self, method: str, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Run `method` on all ranks; return one [num_trained] float32 array per sequence, in input order."""
        results = self._call_groups(method, self.spread(sequences))
        found: list[Any] = [None] * len(sequences)
        indices, arrays = (itertools.chain(*itertools.chain(*parts)) for parts in (self._places(sequences), results))
        for index, array in zip(indices, arrays, strict=True):
            found[index] = array
        return found

    def deal(self, method: str, items: Sequence[Any]) -> list[Any]:
        """Distribute `items` round-robin over ranks (neighbours have similar length); return one result per item."""
        num_workers = len(self.workers)
        shares = self._gather(method, [(items[rank::num_workers],) for rank in range(num_workers)])
        found: list[Any] = [None] * len(items)
        for rank, outcomes in enumerate(shares):
            found[rank::num_workers] = outcomes
        return found

    def spread(self, sequences: Sequence[TrainSequence]) -> list[list[list[TrainSequence]]]:
        """Micro-batches by rank, or group of ranks that share them."""
        return [[[sequences[i] for i in batch] for batch in share] for share in self._places(sequences)]

    def note_rows(self, checks: Sequence[RowCheck]) -> RowCheck:
        """Record packing checks of all ranks; return the worst."""
        worst = min(checks, key=lambda check: check.packed)
        self.packed = self.packed and worst.packed
        return worst

    def _call_groups(self, method: str, shares: Sequence[Any], *args: Any) -> list[Any]:
        """Return one result per share; all workers of a group return the same."""
        calls = [(share, *args) for share in shares for _ in range(self.context)]
        return self._gather(method, calls)[:: self.context]

    def _gather(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        calls = [
            (worker, getattr(worker.handle, method).remote(*each))
            for worker, each in zip(self.workers, arguments, strict=True)
        ]
        what = f"{method.replace('_', ' ')} of the {self.name}"
        # A stop signal waits: weights may be half updated.
        return self.cluster.gather(calls, timeout_s=self.timeout_s, what=what, stoppable=False)

    def _places(self, sequences: Sequence[TrainSequence]) -> list[list[list[int]]]:
        lengths = [len(sequence.token_ids) for sequence in sequences]
        num_parts = len(self.workers) // self.context
        if not self.prefix_sharing:
            return distribute(lengths, num_parts, self.micro_batch_tokens, padded=not self.packed)
        units, tokens = unite(lengths, count_shared(sequences), self.micro_batch_tokens)
        places = distribute(tokens, num_parts, self.micro_batch_tokens)
        return [[[index for unit in batch for index in units[unit]] for batch in share] for share in places]
