"""What vLLM's worker processes gain from us: checked weights.

vLLM mixes this class into its worker (`worker_extension_cls`), so `self` is the worker; methods are
called through `collective_rpc` on every tensor-parallel rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from slurm_rl.models.lora import merge_into_base, read_base
from slurm_rl.models.tied_names import find_tied, name_tied
from slurm_rl.node.heartbeat import enable_stack_dump
from slurm_rl.node.processes import LIFE
from slurm_rl.rollout.vllm import gloo_transfer, random_weights
from slurm_rl.rollout.weights.checksum import WeightChecksum
from slurm_rl.rollout.weights.weight_record import WeightRecord

# This module is imported in every worker before vLLM looks for its loader and its transfer engine.
gloo_transfer.register()
random_weights.register()
# Where an engine hangs, its worker knows where: the actor only waits for it.
_stack_dump = enable_stack_dump(f"{os.environ.get(LIFE, 'engine').partition(' ')[0]}.worker-{os.getpid()}")


class RolloutWorkerExtension:
    """Mixed into vLLM's worker."""

    reload_weights: Callable[..., None]
    """Of vLLM's worker and not of its model runner: it sets the config that kernels of some models ask for."""
    get_model: Callable[[], torch.nn.Module]
    weight_transfer_engine: Any
    device: torch.device

    _arriving: WeightChecksum

    def watch_transfer(self) -> None:
        """Compute the checksum of what the next transfer hands to the model, whichever engine of vLLM's does."""
        self._arriving = arriving = WeightChecksum()
        model = self.weight_transfer_engine.model
        self._drop_expert_kernels(model)

        def load_watched(weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
            return type(model).load_weights(model, arriving.passing(weights))

        model.load_weights = load_watched

    def transfer_checksum(self) -> str:
        """Of the tensors that the transfer brought."""
        return self._arriving.hexdigest()

    def load_adapters(self, records: Sequence[WeightRecord], base: str, dtype: str, scaling: float) -> str:
        """Load the base of a folder with adapters merged into it; the checksum of what was received.

        Only adapters travel. The base is read again from its files, which the system caches, because weights that
        were merged and unmerged again and again would drift.
        """
        checksum = WeightChecksum()
        adapters = dict(checksum.passing(self._unpack(records)))
        merged = merge_into_base(read_base(base, getattr(torch, dtype)), adapters, scaling, self.device)
        # An engine starts with random weights, so that it needs the tied ones, too, which no adapter changes.
        self._reload(name_tied(merged, find_tied(base)))
        return checksum.hexdigest()

    def load_named_weights(self, records: Sequence[WeightRecord]) -> str:
        """Load a whole model given by name and return the checksum of what was received."""
        checksum = WeightChecksum()
        self._reload(checksum.passing(self._unpack(records)))
        return checksum.hexdigest()

    def _reload(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._drop_expert_kernels(self.get_model())
        self.reload_weights(weights_iterator=weights)

    def _drop_expert_kernels(self, model: torch.nn.Module) -> None:
        """Make the next reload build the experts' kernels again, on CPU.

        vLLM packs experts for its CPU kernel only when it builds that kernel (`_setup_kernel` in
        unquantized_fused_moe_method.py), so after a reload the kernel would read weights that are not packed. On GPUs
        the weights need no packing, and CUDA graphs hold the kernel's tensors.
        """
        if self.device.type != "cpu":
            return
        for module in model.modules():
            method: Any = getattr(module, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None

    def _unpack(self, records: Sequence[WeightRecord]) -> Iterator[tuple[str, torch.Tensor]]:
        """One by one on the device, where the checksum is computed."""
        return ((record.name, record.to_tensor().to(self.device)) for record in records)
