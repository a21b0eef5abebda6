"""Weights for tokens whose sampler and policy, for the same weights, give different probabilities.

With `r_t = policy(t) / sampler(t)` each rule maps `log r` [L] of one completion to weights [L] >= 0. They multiply
the advantages: every loss of `POLICY_LOSSES` is linear in a factor >= 0 of its advantage, and a KL term is left
alone. To add one, write a function and a row in `CORRECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slurm_rl.config.algorithm import CorrectionConfig, CorrectionName
from slurm_rl.train.types import FloatArray

# exp(20) is beyond every bound; exp(89) would be infinite in float32.
_MAX_LOG_RATIO = 20.0


def token_tis(log_ratio: FloatArray, low: float, high: float) -> FloatArray:
    """Truncated importance sampling (https://fengyao.notion.site/off-policy-rl): `min(r_t, high)`; no lower bound."""
    return np.minimum(_ratio(log_ratio), np.float32(high))


def sequence_mask(log_ratio: FloatArray, low: float, high: float) -> FloatArray:
    """1 for all tokens when `exp(mean log r)`, the geometric mean, is in low..high, else 0 for all.

    Masks whole completions, as https://arxiv.org/abs/2512.02556 (keep off-policy masks) does for large divergence.
    """
    mean = np.exp(np.clip(log_ratio.mean(), -_MAX_LOG_RATIO, _MAX_LOG_RATIO)) if len(log_ratio) else 1.0
    return np.full_like(log_ratio, 1.0 if low <= mean <= high else 0.0)


def icepop(log_ratio: FloatArray, low: float, high: float) -> FloatArray:
    """IcePop (Ring-1T, https://arxiv.org/abs/2510.18855): `r_t` inside low..high, 0 outside."""
    ratio = _ratio(log_ratio)
    return np.where((ratio >= low) & (ratio <= high), ratio, np.float32(0.0))


CORRECTIONS: dict[CorrectionName, Callable[[FloatArray, float, float], FloatArray]] = {
    "token_tis": token_tis,
    "sequence_mask": sequence_mask,
    "icepop": icepop,
}


def correction_weights(policy: FloatArray, sampler: FloatArray, config: CorrectionConfig) -> FloatArray:
    """Weights [L] of one completion from its two logprobs [L]; all 1 without a rule."""
    if config.kind == "none":
        return np.ones_like(policy)
    return CORRECTIONS[config.kind](policy - sampler, config.low, config.high)


def mismatch_metrics(policy: Sequence[FloatArray], sampler: Sequence[FloatArray]) -> dict[str, float]:
    """Over the tokens of all completions, with `d = log policy - log sampler`: k3 of the sampler to the policy,
    and the mean and the largest of |d|."""
    difference = np.concatenate([*policy, np.zeros(0)]).astype(np.float64) - np.concatenate([*sampler, np.zeros(0)])
    count = max(len(difference), 1)
    return {
        "mismatch/kl": float((np.expm1(difference) - difference).sum() / count),
        "mismatch/mean": float(np.abs(difference).sum() / count),
        "mismatch/max": float(np.abs(difference).max(initial=0.0)),
    }


def _ratio(log_ratio: FloatArray) -> FloatArray:
    return np.exp(np.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
