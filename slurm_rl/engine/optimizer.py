"""AdamW and the clipping of gradients; its schedule is in math/schedule.py."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from slurm_rl.config.train import OptimConfig
from slurm_rl.errors import TrainingError


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over two groups: matrices decay; norms, biases and other vectors do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "decayed": True},
        {"params": [p for p in parameters if p.ndim < 2], "decayed": False},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
    apply_config(optimizer, config)
    return optimizer


def apply_config(optimizer: torch.optim.Optimizer, config: OptimConfig) -> None:
    """Set the hyperparameters; the moments stay."""
    for group in optimizer.param_groups:
        decay = config.weight_decay if group["decayed"] else 0.0
        group.update(lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=decay)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale gradients down to the global norm `max_norm`; returns the norm before that.

    For sharded parameters the norm is over all ranks, so every rank raises or none does.

    Raises:
        TrainingError: the norm is not finite; nothing was changed.
    """
    parameters = [p for p in parameters if p.grad is not None]
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    require_finite_norm(float(norm))
    clip_grads_with_norm_(parameters, max_norm, norm)
    return float(norm)


def require_finite_norm(norm: float) -> None:
    if not math.isfinite(norm):
        raise TrainingError(
            "the gradient norm must be finite",
            seen=norm,
            action="resume from the last checkpoint with a lower optim.lr; the weights were not changed",
        )
