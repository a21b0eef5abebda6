"""The critic's loss of single tokens; weighted and summed as policy losses are."""

from __future__ import annotations

import torch
from torch import Tensor

from slurm_rl.math.losses import TokenLoss


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> TokenLoss:
    """`max((V - R)^2, (V_clipped - R)^2) / 2` [N], `V_clipped = V_old + clamp(V - V_old, -clip, clip)`.

    The pessimistic of the two, as in PPO's policy loss: a value that moved further than `clip` from where it was
    at the start of the step earns nothing for it. From OpenAI's baselines; https://arxiv.org/abs/2005.12729 calls
    it one of the details that matter.

    Args:
        values: [N] with gradient.
        old_values: [N] when the step began.
        returns: [N] what they should have been.
        clip: None clips nothing.
    """
    free = (values - returns).square()
    if clip is None:
        return TokenLoss(loss=0.5 * free, clipped=torch.zeros_like(free, requires_grad=False))
    bounded = (old_values + (values - old_values).clamp(-clip, clip) - returns).square()
    return TokenLoss(loss=0.5 * torch.maximum(free, bounded), clipped=(bounded > free).float())
