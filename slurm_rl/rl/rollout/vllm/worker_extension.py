"""What vLLM's worker processes gain from us: checked weights.

vLLM mixes this class into its worker (`worker_extension_cls`), so `self` is the worker; methods are
called through `collective_rpc` on every tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from slurm_rl.engine.lora import merge_into_base, read_base
from slurm_rl.rl.rollout.vllm.gloo_transfer import register
from slurm_rl.rl.weights.weight_record import WeightRecord, checksum

# This module is imported in every worker before vLLM looks for its transfer engine.
register()


class RolloutWorkerExtension:
    """Mixed into vLLM's worker."""

    reload_weights: Callable[..., None]
    """Of vLLM's worker and not of its model runner: it sets the config that kernels of some models ask for."""
    weight_transfer_engine: Any
    device: torch.device

    def transfer_checksum(self) -> str | None:
        """Of the bytes of the last transfer, where the transfer engine knows it."""
        return getattr(self.weight_transfer_engine, "checksum", None)

    def load_adapters(self, records: Sequence[WeightRecord], base: str, dtype: str, scaling: float) -> str:
        """Load the base of a folder with adapters merged into it; the checksum of the bytes received.

        Only adapters travel. The base is read again from its files, which the system caches, because weights that
        were merged and unmerged again and again would drift.
        """
        adapters = {record.name: record.to_tensor() for record in records}
        merged = merge_into_base(read_base(base, getattr(torch, dtype)), adapters, scaling, self.device)
        self.reload_weights(weights_iterator=merged)
        return checksum(records)

    def load_named_weights(self, records: Sequence[WeightRecord]) -> str:
        """Load a whole model given by name and return the checksum of the bytes received."""
        tensors = [(record.name, record.to_tensor()) for record in records]
        self.reload_weights(weights_iterator=iter(tensors))
        return checksum(records)
