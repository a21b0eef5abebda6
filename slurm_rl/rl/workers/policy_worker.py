"""The policy worker: one data-parallel rank of the policy engine, in a Ray actor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import OptimConfig
from slurm_rl.math.sequences import FloatArray, TokenPrompt, TrainSequence
from slurm_rl.rl.algorithm.policy_loss import build_policy_loss, build_warmup_loss
from slurm_rl.rl.weights.records import SentWeights, WeightRecord, checksum, pack_weights
from slurm_rl.rl.workers.reference_worker import ReferenceModel

if TYPE_CHECKING:
    from slurm_rl.engine.row_check import RowCheck

MicroBatches = Sequence[Sequence[TrainSequence]]


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker stands among its peers."""

    rank: int
    world_size: int
    master_address: str
    master_port: int
    num_threads: int | None


class PolicyWorker:
    """Holds one rank of the policy, and of the reference when there is a KL term. Runs as a Ray actor."""

    def __init__(self, config: RunConfig, model_path: str, place: WorkerPlace) -> None:
        from slurm_rl.engine.distributed import init_process_group
        from slurm_rl.engine.policy import PolicyEngine

        init_process_group(
            place.rank,
            place.world_size,
            place.master_address,
            place.master_port,
            timeout_s=config.trainer.step_timeout_s,
        )
        self.config = config
        self.engine = PolicyEngine(
            model_path,
            config.model,
            config.policy.model_copy(update={"num_workers": place.world_size, "num_threads": place.num_threads}),
            config.warmup.optim if config.warmup.num_steps else config.optim,
            temperature=config.rollout.temperature,
            seed=config.seed,
        )
        self.reference: ReferenceModel | None = None
        self.sender: Any = None

    def ready(self) -> bool:
        return True

    def use_optimizer(self, optim: OptimConfig) -> None:
        """Start a new stage: a fresh optimizer over the same weights."""
        self.engine.reset_optimizer(optim)

    def train_policy(self, micro_batches: MicroBatches, algorithm: AlgorithmConfig, lr: float) -> dict[str, float]:
        """One optimizer step of the policy loss."""
        loss = build_policy_loss(algorithm, self.config.correction_kind)
        return self.engine.train(micro_batches, loss, lr, entropy_gradient=algorithm.entropy_bonus > 0)

    def train_answers(self, micro_batches: MicroBatches, lr: float) -> dict[str, float]:
        """One supervised optimizer step, of the model as it is: no temperature of any sampling has a part in it."""
        return self.engine.train(micro_batches, build_warmup_loss(), lr, temperature=1.0)

    def check_rows(self) -> RowCheck:
        """How the policy's sequences stand in rows."""
        return self.engine.rows

    def load_reference(self, model_path: str) -> RowCheck:
        """Load the frozen model that the KL term is measured against."""
        self.reference = ReferenceModel(model_path, self.config, self.engine.device)
        return self.reference.rows

    def reference_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens under the reference."""
        if self.reference is None:
            # No copy was loaded: the base under the adapters is the reference.
            return self.engine.compute_logprobs(micro_batches, adapters=False)
        return self.reference.compute_logprobs(micro_batches)

    def policy_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens under the policy as it is."""
        return self.engine.compute_logprobs(micro_batches)

    def pack_state(self, probe: TokenPrompt) -> tuple[list[WeightRecord], SentWeights]:
        """What changes of the weights, and what an engine that holds it must say.

        That is all of them, or the adapters alone. Every rank calls it; rank 0 alone has records.
        """
        from slurm_rl.engine.distributed import free_cached_memory

        adapted = self.config.model.lora is not None
        records = pack_weights(self.engine.adapter_state() if adapted else self.engine.full_state())
        sent = SentWeights(checksum(records), self._probe(probe))
        if self.config.rollout.colocate:
            free_cached_memory()  # an engine wakes up beside us
        return records, sent

    def find_address(self) -> tuple[str, int]:
        """Where a transfer group can meet on this node."""
        from slurm_rl.rl.rollout.vllm.transfer import find_address

        return find_address()

    def open_sender(self, engines: Sequence[Any], sizes: Sequence[int], address: tuple[str, int]) -> None:
        """Join a transfer group with these engines, of so many ranks each; see transfer.py."""
        from slurm_rl.engine.distributed import get_rank
        from slurm_rl.rl.rollout.vllm.transfer import EngineClient, open_sender

        client = EngineClient(engines, sizes, self.config.trainer.step_timeout_s)
        backend = self.config.rollout.weight_transfer
        self.sender = open_sender(backend, get_rank(), self.engine, client, 1 + sum(sizes), address)

    def send_state(self, probe: TokenPrompt) -> SentWeights:
        """Send all weights through the group, and say what an engine that holds them must say."""
        from slurm_rl.engine.distributed import free_cached_memory

        self.sender.send_weights()
        sent = SentWeights(getattr(self.sender, "checksum", None) or "", self._probe(probe))
        if self.config.rollout.colocate:
            free_cached_memory()
        return sent

    def _probe(self, prompt: TokenPrompt) -> list[float]:
        """Logprob of each token after the first, at temperature 1."""
        from slurm_rl.engine.forward import compute_sequence_logprobs

        token_ids = np.asarray(prompt.token_ids, dtype=np.int64)
        sequence = TrainSequence(token_ids=token_ids, trained_from=1, images=prompt.images)
        self.engine.module.eval()
        [logprobs] = compute_sequence_logprobs(
            self.engine.backend.model,
            [sequence],
            1.0,
            self.engine.device,
            images=self.engine.images,
            packed=self.engine.rows.packed,
        )
        return [float(value) for value in logprobs]

    def save(self, folder: Path, background: bool) -> list[Path]:
        """Files of this rank that are still being written."""
        return self.engine.save(folder, background=background)

    def load(self, folder: Path) -> None:
        self.engine.load(folder)

    def export(self, folder: Path) -> None:
        self.engine.export(folder)

    def export_adapter(self, folder: Path) -> None:
        self.engine.export_adapter(folder)
