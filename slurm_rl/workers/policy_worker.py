"""One data-parallel rank of the policy, and the frozen model that its KL term is measured against, as Ray actors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slurm_rl.algorithms.policy_loss import build_policy_loss, build_warmup_loss
from slurm_rl.algorithms.sequences import FloatArray, TokenPrompt, TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.train import OptimConfig
from slurm_rl.rollout.weights.weight_record import SentWeights, WeightRecord, pack_weights
from slurm_rl.workers.ray_nodes import find_address
from slurm_rl.workers.worker_group import MicroBatches, TrainWorker, WorkerRank

if TYPE_CHECKING:
    import torch

    from slurm_rl.models.frozen import FrozenModel
    from slurm_rl.models.row_check import RowCheck


class ReferenceHolder:
    """Answers for the frozen model that the KL term is measured against."""

    config: RunConfig
    device: torch.device
    reference: FrozenModel | None = None

    def load_reference(self, model_path: str) -> RowCheck:
        """Load it; how its sequences are laid out in rows."""
        from slurm_rl.models.frozen import FrozenModel

        config = self.config
        # model.init_from holds neither the warmed-up policy nor another model.
        is_other = config.warmup.num_steps or config.reference.path is not None
        model = config.model.model_copy(update={"init_from": None} if is_other else {})
        self.reference = FrozenModel(model_path, model, config.policy, config.rollout.temperature, self.device)
        return self.reference.rows

    def reference_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens, [num_trained] float32 by micro-batch and sequence."""
        assert self.reference is not None
        return self.reference.compute_logprobs(micro_batches)


class PolicyWorker(TrainWorker, ReferenceHolder):
    """Holds one rank of the policy, and of the reference when there is a KL term. Runs as a Ray actor.

    Every rank gets each call, since gathering sharded weights takes all of them.
    """

    sender: Any = None
    """Sender of the transfer group; None before it is opened."""

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
        """Start a new stage: a fresh optimizer over the same weights."""
        self.engine.reset_optimizer(optim)

    def train(self, micro_batches: MicroBatches, algorithm: AlgorithmConfig, lr: float) -> dict[str, float]:
        """One optimizer step of the policy loss."""
        loss = build_policy_loss(algorithm, self.config.correction_kind)
        return self.engine.train(micro_batches, loss, lr, entropy_gradient=algorithm.entropy_coef > 0)

    def train_answers(self, micro_batches: MicroBatches, lr: float) -> dict[str, float]:
        """One supervised optimizer step, of the model as it is: no temperature of any sampling has a part in it."""
        return self.engine.train(micro_batches, build_warmup_loss(), lr, temperature=1.0)

    def logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens under the policy as it is."""
        return self.engine.compute_logprobs(micro_batches)

    def reference_logprobs(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        if self.reference is None:
            # No copy was loaded: the base under the adapters is the reference.
            return self.engine.compute_logprobs(micro_batches, adapters=False)
        return super().reference_logprobs(micro_batches)

    def export(self, folder: Path) -> None:
        """Write the whole model or only the adapters in Hugging Face's layout, as configured."""
        self.engine.export_as_asked(folder)

    def export_model(self, folder: Path) -> None:
        """The whole model, whatever the config asks for."""
        self.engine.export(folder)

    def pack_weights(self, probe: TokenPrompt) -> tuple[list[WeightRecord], SentWeights]:
        """Return the changed weights: all weights, or only the adapters. Only rank 0 has records."""
        from slurm_rl.models.distributed import get_rank

        read = self.engine.state_to_send if self.config.model.lora is None else self.engine.adapters_to_send
        state = read(self.device)  # on every rank, since its checksum is computed there
        if get_rank() == 0:
            records, checksum = pack_weights(state)
        else:
            records, checksum = [], ""
            for _ in state:
                pass
        return records, self._leave(SentWeights(checksum, self._probe(probe)))

    def find_address(self) -> tuple[str, int]:
        """Where a transfer group can meet on this node."""
        return find_address()

    def open_sender(self, backend: str, engines: Sequence[Any], sizes: Sequence[int], address: tuple[str, int]) -> None:
        """Join a transfer group with these engines, of so many ranks each."""
        from slurm_rl.models.distributed import get_rank
        from slurm_rl.rollout.vllm.transfer import EngineClient, open_sender

        client = EngineClient(engines, sizes, self.config.trainer.step_timeout_s)
        self.sender = open_sender(backend, get_rank(), self.engine, client, 1 + sum(sizes), address)

    def send_weights(self, probe: TokenPrompt, *_: Any) -> SentWeights:
        """Send all weights through the group.

        Args:
            _: results that must be there before.
        """
        import torch

        # Before, since engines that sample on wait from the first that is sent until all is confirmed.
        logprobs = self._probe(probe)
        if torch.cuda.is_available():
            # vLLM packs tensors on streams of its own, which do not wait for the optimizer's kernels.
            torch.cuda.synchronize()
        self._free_gpus()  # the first thing that is sent wakes the engines
        self.sender.send_weights()
        return self._leave(SentWeights(self.sender.source.checksum.hexdigest(), logprobs))

    def _leave(self, sent: SentWeights) -> SentWeights:
        self._free_gpus()
        return sent

    def _free_gpus(self) -> None:
        """Release torch's cached memory on GPUs shared with engines: on all ranks before any continues, because rank 0
        wakes the engines of all."""
        import torch

        from slurm_rl.models.distributed import gather_objects

        if self.config.rollout.colocate:
            torch.cuda.empty_cache()
            gather_objects(None)

    def _probe(self, prompt: TokenPrompt) -> list[float]:
        """Logprob of each token after the first, at temperature 1."""
        token_ids = np.asarray(prompt.token_ids, dtype=np.int64)
        sequence = TrainSequence(token_ids=token_ids, trained_from=1, images=prompt.images)
        self.engine.module.eval()
        reader = replace(self.engine.reader, chunk_tokens=None, prefix_sharing=False)
        return [float(value) for value in reader.compute_logprobs([sequence], 1.0)[0]]


class ReferenceWorker(ReferenceHolder):
    """Reference on its own nodes and GPUs; a Ray actor."""

    def __init__(self, config: RunConfig, num_threads: int | None) -> None:
        import torch

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.config = config
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def ready(self) -> bool:
        return True
