"""Importance correction: how much a token counts whose sampler was not quite the policy.

The sampler differs from the policy because its weights are older, or because vLLM and torch compute the same
weights differently. With the ratio `w_t = proximal(t) / sampler(t)`, where proximal is the policy at the start of
the step, a token's loss is multiplied by `f(w_t)`; the policy's own ratio is then taken to proximal (decoupled PPO,
AReaL, https://arxiv.org/abs/2505.24298). To add one, write a function and a row in `CORRECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slurm_rl.config.algorithm import CorrectionName
from slurm_rl.train.math.losses import MAX_LOG_RATIO
from slurm_rl.train.types import FloatArray


def token_tis(log_ratio: FloatArray, low: float, high: float) -> FloatArray:
    """Truncated importance sampling of each token: `min(w_t, high)`; `low` has no part in it.

    https://fengyao.notion.site/off-policy-rl, after Ionides 2008 (https://doi.org/10.1198/106186008X320456).
    """
    return np.minimum(_exp_bounded(log_ratio), np.float32(high))


def sequence_mask(log_ratio: FloatArray, low: float, high: float) -> FloatArray:
    """1 for all tokens of a completion whose geometric mean of `w_t` lies in [low, high], else 0 for all."""
    mean = _exp_bounded(log_ratio.mean(keepdims=True)) if len(log_ratio) else np.ones(1, dtype=np.float32)
    is_inside = bool(low <= float(mean[0]) <= high)
    return np.full_like(log_ratio, float(is_inside))


def icepop(log_ratio: FloatArray, low: float, high: float) -> FloatArray:
    """IcePop (Ring-1T, https://arxiv.org/abs/2510.18855): `w_t` within [low, high], 0 outside."""
    ratio = _exp_bounded(log_ratio)
    return np.where((ratio >= low) & (ratio <= high), ratio, np.float32(0.0)).astype(np.float32)


CORRECTIONS: dict[CorrectionName, Callable[[FloatArray, float, float], FloatArray]] = {
    "token_tis": token_tis,
    "sequence_mask": sequence_mask,
    "icepop": icepop,
}
"""Each maps log w_t [n] of one completion, and the bounds, to the weights [n], float32 and never negative."""


def _exp_bounded(log_ratio: FloatArray) -> FloatArray:
    return np.exp(np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)).astype(np.float32)
