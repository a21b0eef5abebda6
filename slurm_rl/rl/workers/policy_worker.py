"""One data-parallel rank of the policy, and the frozen model that its KL term is measured against, as Ray actors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import OptimConfig
from slurm_rl.math.sequences import FloatArray
from slurm_rl.rl.algorithm.policy_loss import build_policy_loss, build_warmup_loss
from slurm_rl.rl.weights.source import WeightSource
from slurm_rl.rl.workers.base import EngineWorker, MicroBatches, WorkerRank

if TYPE_CHECKING:
    import torch

    from slurm_rl.engine.frozen import FrozenModel
    from slurm_rl.engine.row_check import RowCheck


class PolicyWorker(EngineWorker, WeightSource):
    """Holds one rank of the policy, and of the reference when there is a KL term. Runs as a Ray actor."""

    def __init__(self, config: RunConfig, model_path: str, place: WorkerRank) -> None:
        from slurm_rl.engine.distributed import init_process_group
        from slurm_rl.engine.policy import PolicyEngine

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
        self.reference: FrozenModel | None = None

    def use_optimizer(self, optim: OptimConfig) -> None:
        """Start a new stage: a fresh optimizer over the same weights."""
        self.engine.reset_optimizer(optim)

    def train(self, micro_batches: MicroBatches, algorithm: AlgorithmConfig, lr: float) -> dict[str, float]:
        """One optimizer step of the policy loss."""
        loss = build_policy_loss(algorithm, self.config.correction_kind)
        return self.engine.train(micro_batches, loss, lr, entropy_gradient=algorithm.entropy_bonus > 0)

    def train_answers(self, micro_batches: MicroBatches, lr: float) -> dict[str, float]:
        """One supervised optimizer step, of the model as it is: no temperature of any sampling has a part in it."""
        return self.engine.train(micro_batches, build_warmup_loss(), lr, temperature=1.0)

    def logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens under the policy as it is."""
        return self.engine.compute_logprobs(micro_batches)

    def load_reference(self, model_path: str) -> RowCheck:
        """Load the frozen model that the KL term is measured against."""
        self.reference = _load_reference(model_path, self.config, self.engine.device)
        return self.reference.rows

    def reference_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens under the reference."""
        if self.reference is None:
            # No copy was loaded: the base under the adapters is the reference.
            return self.engine.compute_logprobs(micro_batches, adapters=False)
        return self.reference.compute_logprobs(micro_batches)

    def export(self, folder: Path) -> None:
        """Write what the config asks for, in Hugging Face's layout: the whole model, or the adapters alone."""
        adapted = self.config.model.lora
        if adapted and adapted.export == "adapter":
            self.engine.export_adapter(folder)
        else:
            self.engine.export(folder)

    def export_model(self, folder: Path) -> None:
        """The whole model, whatever the config asks for."""
        self.engine.export(folder)


class ReferenceWorker:
    """The reference alone, on nodes and GPUs of its own. Runs as a Ray actor."""

    def __init__(self, config: RunConfig, num_threads: int | None) -> None:
        import torch

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def ready(self) -> bool:
        return True

    def load_reference(self, model_path: str) -> RowCheck:
        self.reference = _load_reference(model_path, self.config, self.device)
        return self.reference.rows

    def reference_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        return self.reference.compute_logprobs(micro_batches)


def _load_reference(model_path: str, config: RunConfig, device: torch.device) -> FrozenModel:
    from slurm_rl.engine.frozen import FrozenModel

    # After a warm-up the reference is what that made, whatever the policy began from.
    model = config.model.model_copy(update={"init_from": None} if config.warmup.num_steps else {})
    return FrozenModel(model_path, model, config.policy, config.rollout.temperature, device)
