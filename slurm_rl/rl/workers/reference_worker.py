"""The frozen model that the KL term is measured against, inside each policy worker or in actors of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_rl.config.run import RunConfig
from slurm_rl.math.sequences import FloatArray, TrainSequence

if TYPE_CHECKING:
    import torch

    from slurm_rl.engine.row_check import RowCheck


class ReferenceModel:
    """A whole copy of the model; it is not sharded, since it has neither gradients nor moments."""

    def __init__(self, model_path: str, config: RunConfig, device: torch.device) -> None:
        from slurm_rl.engine.model import load_model
        from slurm_rl.engine.row_check import check_rows
        from slurm_rl.engine.vision import load_image_reader

        self.config, self.device = config, device
        # After a warm-up the reference is what that made, whatever the policy began from.
        model = config.model.model_copy(update={"init_from": None} if config.warmup.num_steps else {})
        self.model = load_model(model_path, model).to(device).eval()
        self.images = load_image_reader(model_path, model)
        self.rows = check_rows(
            self.model,
            self.model.dtype,
            device,
            images=self.images,
            chunk_tokens=config.policy.logprob_chunk_tokens,
            share_prompts=config.policy.share_prompts,
        )

    def compute_logprobs(self, micro_batches: Sequence[Sequence[TrainSequence]]) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens, by micro-batch and sequence."""
        from slurm_rl.engine.forward import compute_sequence_logprobs

        temperature, policy = self.config.rollout.temperature, self.config.policy
        return [
            compute_sequence_logprobs(
                self.model,
                batch,
                temperature,
                self.device,
                chunk_tokens=policy.logprob_chunk_tokens,
                images=self.images,
                share_prompts=policy.share_prompts,
                packed=self.rows.packed,
            )
            for batch in micro_batches
        ]


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
        self.reference = ReferenceModel(model_path, self.config, self.device)
        return self.reference.rows

    def reference_logprobs(self, micro_batches: Sequence[Sequence[TrainSequence]]) -> list[list[FloatArray]]:
        return self.reference.compute_logprobs(micro_batches)
