"""KL divergence per token between the policy and a frozen model (http://joschu.net/blog/kl-approx.html).

With x sampled from the policy and `d = log policy(x) - log reference(x)`, each estimator maps the two
logprobs [N] to KL(policy || reference) [N]. To add one, write a function and a row in `KL_ESTIMATORS` of
config/registry.py.
"""

import torch
from torch import Tensor

from slurm_rl.algorithms.losses import MAX_LOG_RATIO
from slurm_rl.config.registry import KL_ESTIMATORS

_MAX_ERROR = 0.2
"""Largest relative error that the controller corrects at once."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d`: unbiased, may be negative.

    For rewards only: as a loss term its expected gradient is zero.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d^2 / 2`: biased, never negative; on-policy its gradient is that of the true KL."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`exp(-d) - 1 + d`: unbiased and never negative; GRPO's choice (https://arxiv.org/abs/2402.03300).

    As a loss term its gradient `1 - exp(-d)` is biased unless `kl.bias_correction` multiplies it by the policy ratio.
    |d| is bounded like the log ratios of the losses, with no gradient beyond: a single unlikely token could otherwise
    dominate the loss.
    """
    difference = (logprobs - ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    # expm1 is accurate where the two models nearly agree.
    return torch.expm1(-difference) + difference


def compute_kl(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Return the KL [N] of each token by the named estimator; differentiable in `logprobs`."""
    kl: Tensor = KL_ESTIMATORS[estimator].load()(logprobs, ref_logprobs)
    return kl


def adapt_coefficient(coefficient: float, kl: float, target: float, num_completions: int, horizon: int) -> float:
    """Return the coefficient of the next step, which is higher if the KL exceeds its target.

    `coefficient * (1 + clip(kl / target - 1, -0.2, 0.2) * num_completions / horizon)`: the proportional controller
    of Ziegler et al. 2019 (https://arxiv.org/abs/1909.08593, section 2.2).

    Args:
        kl: KL per completion, summed over tokens, in nats; mean over the step.
        horizon: completions over which an error of 20 % or more changes the coefficient by 20 %.

    >>> round(adapt_coefficient(0.1, kl=12.0, target=6.0, num_completions=100, horizon=1000), 6)
    0.102
    """
    error = min(max(kl / target - 1.0, -_MAX_ERROR), _MAX_ERROR)
    return coefficient * (1.0 + error * num_completions / horizon)
