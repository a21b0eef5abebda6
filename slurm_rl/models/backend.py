"""Interface of a sharding library for the policy engine, and the table of implementations.

Loss convention: token weights are global, so the loss of a step is the plain sum over tokens, micro-batches and ranks.
A
library that averages gradients over ranks has that undone here.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import PreTrainedModel

from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import TrainingError
from slurm_rl.models.meshes import open_meshes
from slurm_rl.models.weight_files import WeightFiles


class Backend(Protocol):
    """A sharded model with its optimizer. Every method is collective."""

    model: Callable[..., Any]
    """Called with the model's keyword arguments; runs the collectives that sharding needs."""
    module: PreTrainedModel
    """The model itself; its parameters may be shards."""
    can_reshard: bool
    """Whether `load` accepts a checkpoint of another number of ranks."""

    def backward(self, loss: Tensor, *, is_last: bool = True) -> None:
        """Add the gradient of this rank's `loss` (a sum) to the step's; `is_last` marks the last call before `step`."""

    def step(self, lr: float) -> float:
        """Sum gradients over ranks, clip, update, clear them; return the norm before clipping.

        Raises:
            TrainingError: the norm is not finite; no rank changed its weights.
        """

    def reset_optimizer(self, config: OptimConfig) -> None:
        """Reset the moments and take other hyperparameters."""

    dtype: torch.dtype
    """The model's own type, which `full_state` yields."""

    def full_state(
        self, wanted: Callable[[str], bool] | None = None, place: torch.device | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield each whole tensor of `state_dict()` on rank 0 on CPU, tied ones under each of their names.

        Other ranks yield nothing but must exhaust the iterator. Each rank needs at most two buckets (gather.py), or
        twice the
        largest tensor, on its device in addition to its shards.

        Args:
            wanted: filter of names, the same on every rank; None: all.
            place: every rank yields its tensors there.
        """

    def save(self, folder: Path, *, copy: bool) -> dict[str, Any] | None:
        """Return this rank's shard of the trained parameters and their moments, for its file in `folder`.

        None if the library has written files of its own, or another replica writes the shard.

        Args:
            copy: copy the tensors to host memory, because training continues before they are written.
        """

    def load(self, folder: Path, num_saved: int) -> None:
        """Restore the state that `save` wrote with `num_saved` ranks."""


def build_backend(
    model: PreTrainedModel, policy: PolicyConfig, optim: OptimConfig, files: WeightFiles | None = None
) -> Backend:
    """Shard `model` over the ranks; with `files` it is empty and each rank reads its part, else it is whole on CPU."""
    backend: Backend = load_function(_BACKENDS[policy.backend])(model, policy, optim, files)
    return backend


def splits_parameters(policy: PolicyConfig, dtype: torch.dtype) -> bool:
    """Return whether the ranks share the parameters, so that the model may come empty."""
    meshes = open_meshes(policy)
    if policy.backend == "deepspeed":
        return meshes.num_parts > 1
    # FSDP2 casts each block that it gathers, and brings it from the host; one worker in float32 needs neither.
    return meshes.dims.num_ranks > 1 or dtype != torch.float32 or policy.offload == "all"


_BACKENDS = {
    "fsdp2": "slurm_rl.models.fsdp2:FSDP2Backend",
    "deepspeed": "slurm_rl.models.deepspeed:DeepSpeedBackend",
}


def build_optimizer(model: nn.Module, config: OptimConfig, *, fused: bool = False) -> torch.optim.AdamW:
    """Return AdamW over two groups: matrices decay; norms, biases and other vectors do not.

    Args:
        fused: update by one kernel, which needs no memory; otherwise torch makes a copy of the second moments on a GPU.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    # Parameters that ZeRO has split are flat and keep their shape in `ds_shape`.
    matrices = {p for p in parameters if len(getattr(p, "ds_shape", p.shape)) >= 2}
    groups = [
        {"params": [p for p in parameters if p in matrices], "decayed": True},
        {"params": [p for p in parameters if p not in matrices], "decayed": False},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], fused=fused)
    apply_config(optimizer, config)
    return optimizer


def apply_config(optimizer: torch.optim.Optimizer, config: OptimConfig) -> None:
    for group in optimizer.param_groups:
        decay = config.weight_decay if group["decayed"] else 0.0
        group.update(lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=decay)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Clip to the norm `max_norm` over all ranks and return the norm before; raise TrainingError if not finite."""
    parameters = [p for p in parameters if p.grad is not None]
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    require_finite("gradient norm", float(norm))
    clip_grads_with_norm_(parameters, max_norm, norm)
    return float(norm)


def require_finite(what: str, value: float) -> None:
    """Raise TrainingError unless `value`, the loss or the gradient norm, is finite."""
    if not math.isfinite(value):
        raise TrainingError(
            f"the {what} must be finite",
            seen=value,
            action="resume from the last checkpoint with a lower optim.lr; the weights were not changed",
        )
