"""torch's own sharding: parameters, gradients and moments split over the ranks of a replica, block by block.

Master weights and moments are float32; with a bfloat16 model torch casts each block as it gathers it.
Frozen weights, as under adapters, stay in the model's own type.
One worker in float32 has nothing to shard and keeps a plain module.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel

from slurm_rl.config.parallel import HELD_GRADIENTS, choose_shard_dim
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import BringUpError
from slurm_rl.models.backend import (
    apply_config,
    build_optimizer,
    clip_gradients,
    set_lr,
    splits_parameters,
)
from slurm_rl.models.distributed import device_memory, gather_objects, get_device
from slurm_rl.models.gather import Part, gather_state
from slurm_rl.models.meshes import Meshes, open_meshes
from slurm_rl.models.offload import HostMoments
from slurm_rl.models.shards import SavedShards, from_local, region_of, to_local
from slurm_rl.models.weight_files import WeightFiles, fill_parameters, names_in_files


class FSDP2Backend:
    can_reshard = True

    def __init__(
        self, model: PreTrainedModel, policy: PolicyConfig, optim: OptimConfig, files: WeightFiles | None = None
    ) -> None:
        self.offload = offload = policy.offload
        self.meshes = open_meshes(policy)
        self.dtype: torch.dtype = model.dtype
        self.module = model
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and (tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)):
                tensor.data = tensor.data.to(torch.float32)  # frozen weights need no master copy
        if splits_parameters(policy, self.dtype):
            shard_blocks(self.module, self.dtype, self.meshes, offload=offload == "all")
        if files is not None:
            device = torch.device("cpu") if offload == "all" else get_device()
            fill_shards(self.module, files, device, self.meshes)
        if offload == "all":
            for buffer in self.module.buffers():
                buffer.data = buffer.data.to(get_device())
        else:
            self.module.to(get_device())
        self.model = self.module
        self.max_grad_norm = optim.max_grad_norm
        self.optimizer = build_optimizer(self.module, optim, fused=True)
        self._moments = HostMoments(self.optimizer, get_device()) if offload == "optimizer" else None
        is_shared = self.meshes.dims.num_ranks > 1 and offload != "all"
        self._syncs_once = is_shared and _may_hold_gradients(self.module)

    def backward(self, loss: Tensor, *, is_last: bool = True) -> None:
        if isinstance(self.module, FSDPModule):
            if self._syncs_once:
                self.module.set_requires_gradient_sync(is_last)
            elif self.meshes.dims.replicate > 1:
                self.module.set_requires_all_reduce(is_last)
        loss.backward()

    def step(self, lr: float) -> float:
        try:
            norm = clip_gradients(self.module.parameters(), self.max_grad_norm)
            set_lr(self.optimizer, lr)
            (self._moments or self.optimizer).step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return norm

    def reset_optimizer(self, config: OptimConfig) -> None:
        self.max_grad_norm = config.max_grad_norm
        self._forget_moments()
        apply_config(self.optimizer, config)

    def _forget_moments(self) -> None:
        self.optimizer.state.clear()
        if self._moments is not None:
            self._moments.clear()

    def full_state(
        self, wanted: Callable[[str], bool] | None = None, place: torch.device | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        state = self.module.state_dict().items()
        held = (
            (name, _to_part(shard, self.meshes.num_parts)) for name, shard in state if wanted is None or wanted(name)
        )
        return gather_state(held, self.dtype, place, self.meshes.parts_group)

    def save(self, folder: Path, *, copy: bool) -> dict[str, Any] | None:
        parameters = self._named_shards()
        if not self.meshes.is_first_replica:
            return None
        moments = {name: self.optimizer.state.get(p, {}) for name, p in parameters.items()}
        keep = _copy_to_host if copy else to_local
        return {
            "parameters": {name: keep(p) for name, p in parameters.items()},
            "moments": {name: {k: keep(v) for k, v in m.items()} for name, m in moments.items()},
        }

    @torch.no_grad()
    def load(self, folder: Path, num_saved: int) -> None:
        shards = SavedShards(folder, num_saved, self.meshes)
        self.optimizer.zero_grad(set_to_none=True)
        self._forget_moments()
        for name, parameter in self._named_shards().items():
            to_local(parameter).copy_(shards.read(name, parameter.shape))
            for key in shards.moment_names(name):
                self.optimizer.state[parameter][key] = _place_like(parameter, shards.read(name, parameter.shape, key))
        if self._moments is not None:
            self._moments.park()

    def _named_shards(self) -> dict[str, Tensor]:
        # A forward pass leaves the root gathered; its parameters are shards again only after this.
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


def _may_hold_gradients(module: torch.nn.Module) -> bool:
    """Return whether gradients may stay whole on every rank, in float32, and be summed only once per step.

    Adapters and small models have the memory for it. All ranks get the same answer.
    """
    whole = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad) * 4
    return whole <= HELD_GRADIENTS * min(gather_objects(device_memory()))


def fill_shards(module: torch.nn.Module, files: WeightFiles, device: torch.device, meshes: Meshes) -> None:
    names = names_in_files(module)

    def read(empty: torch.nn.Parameter) -> Tensor:
        if not isinstance(empty, DTensor):
            return files.read(names[empty]).to(device, empty.dtype)
        region = region_of(empty.shape, meshes.part, meshes.num_parts)
        return from_local(files.read(names[empty], region).to(device, empty.dtype).contiguous(), empty)

    fill_parameters(module, read)
    # FSDP keeps the local tensors it began with; whatever goes through here it takes anew.
    module._apply(lambda tensor: tensor)


def shard_blocks(model: PreTrainedModel, dtype: torch.dtype, meshes: Meshes, *, offload: bool) -> None:
    """Shard the parameters over a replica's ranks, block by block; frozen blocks are freed after their forward."""
    if not torch.distributed.is_initialized():
        raise BringUpError(
            "a policy in bfloat16 or with policy.offload=all needs a process group, also of one rank",
            action="call slurm_rl.models.distributed.init_process_group first",
        )
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    waiting = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy()
    block_types = set(model._no_split_modules or [])
    blocks = [m for m in model.modules() if type(m).__name__ in block_types]
    # The root has the head's weights; only a backward pass needs them again.
    let_go = None if any(p.requires_grad for p in model.parameters()) else True
    for module in [*blocks, model]:
        fully_shard(
            module,
            mesh=meshes.parameters,
            mp_policy=precision,
            offload_policy=waiting,
            reshard_after_forward=let_go,
            shard_placement_fn=lambda parameter: Shard(choose_shard_dim(parameter.shape, meshes.num_parts)),
        )
        # Sum gradients over ranks, not average: the loss is a sum. gloo has no pre-multiplied sum.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _to_part(shard: Tensor, num_parts: int) -> Tensor | Part:
    if not isinstance(shard, DTensor):
        return shard
    dim = choose_shard_dim(shard.shape, num_parts)
    ceil = -(-shard.shape[dim] // num_parts) * math.prod(shard.shape) // shard.shape[dim]
    return Part(to_local(shard).reshape(-1), shard.shape, ceil, dim)


def _copy_to_host(tensor: Tensor) -> Tensor:
    return to_local(tensor).to(device="cpu", copy=True)


def _place_like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a moment sharded as its parameter, or the step counter on the device, where the fused update reads it."""
    if value.ndim == 0:
        return value.to(to_local(parameter).device)
    placed = torch.zeros_like(parameter)
    to_local(placed).copy_(value)
    return placed
