"""torch's own sharding: parameters, gradients and moments split over ranks, block by block.

Master weights and moments are float32; with a bfloat16 model torch casts each block as it gathers it.
Frozen weights, as under adapters, stay in the model's own type.
One worker in float32 has nothing to shard and keeps a plain module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from slurm_rl.config.train import OptimConfig
from slurm_rl.errors import BringUpError
from slurm_rl.train.engine import optimizer as optimizers
from slurm_rl.train.engine.backend import export_tensor
from slurm_rl.train.engine.distributed import get_device, get_rank, get_world_size


class FSDP2Backend:
    """See `Backend`."""

    def __init__(self, model: PreTrainedModel, optim: OptimConfig) -> None:
        self.dtype: torch.dtype = model.dtype
        self.module = model
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and (tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)):
                tensor.data = tensor.data.to(torch.float32)  # frozen weights need no master copy
        if get_world_size() > 1 or self.dtype != torch.float32:
            _shard(self.module, self.dtype)
        self.module.to(get_device())
        self.model = self.module
        self.max_grad_norm = optim.max_grad_norm
        self.optimizer = optimizers.build_optimizer(self.module, optim)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, lr: float) -> float:
        try:
            norm = optimizers.clip_gradients(self.module.parameters(), self.max_grad_norm)
            optimizers.set_lr(self.optimizer, lr)
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return norm

    def reset_optimizer(self, config: OptimConfig) -> None:
        self.max_grad_norm = config.max_grad_norm
        self.optimizer.state.clear()
        optimizers.apply_config(self.optimizer, config)

    def full_state(self, wanted: Callable[[str], bool] | None = None) -> Iterator[tuple[str, Tensor]]:
        for name, shard in self.module.state_dict().items():
            if wanted is not None and not wanted(name):
                continue
            whole = shard.full_tensor() if isinstance(shard, DTensor) else shard
            if get_rank() == 0:
                yield name, export_tensor(name, whole, self.dtype)

    def save(self, folder: Path) -> None:
        parameters = self._named_shards()
        moments = {name: self.optimizer.state.get(p, {}) for name, p in parameters.items()}
        state = {
            "parameters": {name: _to_local(p) for name, p in parameters.items()},
            "moments": {name: {k: _to_local(v) for k, v in m.items()} for name, m in moments.items()},
        }
        torch.save(state, _rank_file(folder))

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        # weights_only: tensors and plain containers, never code.
        state = torch.load(_rank_file(folder), map_location="cpu", weights_only=True)
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        for name, parameter in self._named_shards().items():
            _to_local(parameter).copy_(state["parameters"][name])
            for key, value in state["moments"][name].items():
                self.optimizer.state[parameter][key] = _place_like(parameter, value)

    def _named_shards(self) -> dict[str, Tensor]:
        """This rank's shards of the trained parameters."""
        # A forward pass leaves the root gathered; its parameters are shards again only after this.
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


def _shard(model: PreTrainedModel, dtype: torch.dtype) -> None:
    if not torch.distributed.is_initialized():
        raise BringUpError(
            "a bfloat16 policy needs a process group, also of one rank",
            action="call slurm_rl.train.engine.distributed.init_process_group first",
        )
    mesh = init_device_mesh(get_device().type, (get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    block_types = set(model._no_split_modules or [])
    blocks = [m for m in model.modules() if type(m).__name__ in block_types]
    for module in [*blocks, model]:
        fully_shard(module, mesh=mesh, mp_policy=precision)
        # Sum gradients over ranks, not average: the loss is a sum. gloo has no pre-multiplied sum.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def _to_local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def _place_like(parameter: Tensor, value: Tensor) -> Tensor:
    """A moment sharded as its parameter is; the step counter is a scalar and stays whole on CPU."""
    if value.ndim == 0:
        return value
    placed = torch.zeros_like(parameter)
    _to_local(placed).copy_(value)
    return placed


def _rank_file(folder: Path) -> Path:
    return folder / f"rank-{get_rank()}.pt"
