"""Importance correction: how much a token counts whose sampler was not quite the policy.

The sampler differs from the policy because its weights are older, because it samples from a distribution cut or bent
on purpose (top_p, top_k, min_p, a repetition penalty), or because vLLM and torch round the same weights differently.
With the ratio `w_t = proximal(t) / sampler(t)`, where proximal is the policy at the start of the step, a token's loss
is multiplied by `f(w_t)`; the policy's own ratio is then taken to proximal (decoupled PPO, AReaL,
https://arxiv.org/abs/2505.24298), so that clipping sees what training changed and not what rounding did. To add one,
write a function and a row in `CORRECTIONS` of config/tables.py: it maps the tokens of a micro-batch to their weights
[N], float32 and never negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slurm_rl.math.losses import exp_bounded, mean_by_sequence


@dataclass(frozen=True, kw_only=True)
class CorrectionInputs:
    """The trained tokens of one micro-batch; a sequence is never cut between two micro-batches."""

    log_ratio: Tensor
    """[N] log w_t, without gradient."""
    sequence_ids: Tensor
    """[N] int64 in 0..num_sequences-1."""
    num_sequences: int
    low: float
    """Smallest ratio let through."""
    high: float
    """Largest."""


def token_tis(inputs: CorrectionInputs) -> Tensor:
    """Truncated importance sampling of each token: `min(w_t, high)`; `low` has no part in it.

    https://fengyao.notion.site/off-policy-rl, after Ionides 2008 (https://doi.org/10.1198/106186008X320456).
    """
    return exp_bounded(inputs.log_ratio).clamp(max=inputs.high)


def sequence_mask(inputs: CorrectionInputs) -> Tensor:
    """1 for all tokens of a completion whose geometric mean of `w_t` lies in [low, high], else 0 for all."""
    mean = exp_bounded(mean_by_sequence(inputs.log_ratio, inputs.sequence_ids, inputs.num_sequences))
    return ((mean >= inputs.low) & (mean <= inputs.high)).float()


def icepop(inputs: CorrectionInputs) -> Tensor:
    """IcePop (Ring-1T, https://arxiv.org/abs/2510.18855): `w_t` within [low, high], 0 outside."""
    ratio = exp_bounded(inputs.log_ratio)
    return torch.where((ratio >= inputs.low) & (ratio <= inputs.high), ratio, 0.0)
