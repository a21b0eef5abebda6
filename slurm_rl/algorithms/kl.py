"""How far the policy is from the frozen reference, token by token (http://joschu.net/blog/kl-approx.html).

With x drawn from the policy and `d = log policy(x) - log reference(x)`, each estimator maps the two
logprobs [N] to KL(policy || reference) [N]. To add one, write a function and a row in `KL_ESTIMATORS` of
config/registry.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slurm_rl.algorithms.losses import MAX_LOG_RATIO
from slurm_rl.config.registry import KL_ESTIMATORS

# The controller moves by at most this share of itself and of the horizon.
_MAX_ERROR = 0.2


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d`: unbiased, may be negative.

    Meant for the reward: as a loss term its expected gradient is zero, whatever the distance.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d^2 / 2`: biased, never negative; on-policy its gradient is that of the true KL."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`exp(-d) - 1 + d`: unbiased and never negative; GRPO's choice (https://arxiv.org/abs/2402.03300).

    As a term of the loss its gradient is `1 - exp(-d)` per token, whose expectation is not that of the KL;
    `kl.bias_correction` multiplies the term by the policy's ratio, and then it is.

    With |d| bounded as the losses bound log ratios, and no gradient beyond: one token that the policy has all but
    given up would else be the whole loss, or infinity.
    """
    difference = (logprobs - ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    # expm1 keeps the digits that exp(-d) - 1 loses where the two models nearly agree.
    return torch.expm1(-difference) + difference


def compute_kl(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """KL [N] of each token, by the named estimator; differentiable in `logprobs`."""
    kl: Tensor = KL_ESTIMATORS[estimator].load()(logprobs, ref_logprobs)
    return kl


def adapt_coefficient(coefficient: float, kl: float, target: float, num_completions: int, horizon: int) -> float:
    """The coefficient of the next step: higher when the policy is further from the reference than wanted.

    `coefficient * (1 + clip(kl / target - 1, -0.2, 0.2) * num_completions / horizon)`: the proportional controller
    of Ziegler et al. 2019 (https://arxiv.org/abs/1909.08593, section 2.2).

    Args:
        kl: mean over the step's completions of the KL summed over their tokens, in nats.
        horizon: completions in which an error of 20 % or more changes the coefficient by 20 %.

    >>> round(adapt_coefficient(0.1, kl=12.0, target=6.0, num_completions=100, horizon=1000), 6)
    0.102
    """
    error = min(max(kl / target - 1.0, -_MAX_ERROR), _MAX_ERROR)
    return coefficient * (1.0 + error * num_completions / horizon)
