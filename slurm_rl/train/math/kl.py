"""How far the policy is from the frozen reference, token by token (http://joschu.net/blog/kl-approx.html).

With x drawn from the policy and `d = log policy(x) - log reference(x)`, each estimator maps the two
logprobs [N] to KL(policy || reference) [N].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

KLEstimatorName = Literal["k1", "k2", "k3"]


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d`: unbiased, may be negative.

    Meant for the reward: as a loss term its expected gradient is zero, whatever the distance.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`d^2 / 2`: biased, never negative; on-policy its gradient is that of the true KL."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """`exp(-d) - 1 + d`: unbiased and never negative; GRPO's choice (https://arxiv.org/abs/2402.03300)."""
    difference = logprobs - ref_logprobs
    # expm1 keeps the digits that exp(-d) - 1 loses where the two models nearly agree.
    return torch.expm1(-difference) + difference


KL_ESTIMATORS: dict[KLEstimatorName, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def compute_kl(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimatorName) -> Tensor:
    """KL [N] of each token, by the named estimator; differentiable in `logprobs`."""
    return KL_ESTIMATORS[estimator](logprobs, ref_logprobs)
