"""A model that is read and never trained: a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.engine.forward import RowReader
from slurm_rl.engine.load_model import load_model
from slurm_rl.engine.row_check import check_rows
from slurm_rl.engine.vision import load_image_reader
from slurm_rl.math.sequences import FloatArray, TrainSequence


class FrozenModel:
    """A whole copy on this rank; it is not sharded, since it has neither gradients nor moments."""

    def __init__(
        self, folder: str | Path, model: ModelConfig, policy: PolicyConfig, temperature: float, device: torch.device
    ) -> None:
        module = load_model(folder, model).to(device).eval()
        images = load_image_reader(folder, model)
        reader = RowReader(module, device, images, policy.logprob_chunk_tokens, policy.share_prompts)
        self.rows = check_rows(reader, module.dtype)
        self.reader, self.temperature = replace(reader, packed=self.rows.packed), temperature

    def compute_logprobs(self, micro_batches: Sequence[Sequence[TrainSequence]]) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens, by micro-batch and sequence."""
        return [self.reader.compute_logprobs(batch, self.temperature) for batch in micro_batches]
