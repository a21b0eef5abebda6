"""A model that is read and never trained: a reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.engine.forward import compute_sequence_logprobs
from slurm_rl.engine.model import load_model
from slurm_rl.engine.row_check import check_rows
from slurm_rl.engine.vision import load_image_reader
from slurm_rl.math.sequences import FloatArray, TrainSequence


class FrozenModel:
    """A whole copy on this rank; it is not sharded, since it has neither gradients nor moments."""

    def __init__(
        self, folder: str | Path, model: ModelConfig, policy: PolicyConfig, temperature: float, device: torch.device
    ) -> None:
        module = load_model(folder, model).to(device).eval()
        images, chunk_tokens = load_image_reader(folder, model), policy.logprob_chunk_tokens
        self.rows = check_rows(
            module,
            module.dtype,
            device,
            images=images,
            chunk_tokens=chunk_tokens,
            share_prompts=policy.share_prompts,
        )
        self._logprobs = partial(
            compute_sequence_logprobs,
            module,
            temperature=temperature,
            device=device,
            chunk_tokens=chunk_tokens,
            images=images,
            share_prompts=policy.share_prompts,
            packed=self.rows.packed,
        )

    def compute_logprobs(self, micro_batches: Sequence[Sequence[TrainSequence]]) -> list[list[FloatArray]]:
        """Logprobs of the trained tokens, by micro-batch and sequence."""
        return [self._logprobs(sequences=batch) for batch in micro_batches]
