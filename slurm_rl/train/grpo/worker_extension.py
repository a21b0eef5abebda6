"""What vLLM's worker processes gain from us: seeding and checked weights.

vLLM mixes this class into its worker (`worker_extension_cls`), so `self` is the worker; methods are
called through `collective_rpc` on every tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slurm_rl.train.grpo.weights import WeightRecord, checksum


class RolloutWorkerExtension:
    """Mixed into vLLM's worker."""

    model_runner: Any

    def seed_sampler(self, seed: int) -> None:
        """Seed the generator that the sampler draws from."""
        torch.manual_seed(seed)

    def load_named_weights(self, records: Sequence[WeightRecord]) -> str:
        """Load a whole model given by name and return the checksum of the bytes received."""
        tensors = [(record.name, record.to_tensor()) for record in records]
        self.model_runner.reload_weights(weights_iterator=iter(tensors))
        return checksum(records)
