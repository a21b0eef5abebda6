"""Rewards to advantages: how much better was this completion than what the policy usually does?

Every function maps rewards [P, G] float32 (P prompts, G completions of each) to advantages [P, G],
one a completion; all its tokens share it. To add one, write a function and a row in `ADVANTAGES`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slurm_rl.config.algorithm import AdvantageName

# Added to the deviation, as TRL does: a group whose rewards barely differ must not get huge advantages.
_EPSILON = 1e-4


def group_norm(rewards: Tensor) -> Tensor:
    """GRPO (https://arxiv.org/abs/2402.03300): `(r - mean_group) / (std_group + 1e-4)`, std with G - 1."""
    centred = _subtract_mean(rewards)
    return centred / (_compute_std(centred) + _EPSILON)


def dr_grpo(rewards: Tensor) -> Tensor:
    """Dr. GRPO (https://arxiv.org/abs/2503.20783): `r - mean_group`.

    Without the division, prompts that are nearly always or nearly never solved weigh no more than the others.
    """
    return _subtract_mean(rewards)


def rloo(rewards: Tensor) -> Tensor:
    """Leave one out (https://arxiv.org/abs/2402.14740): `r_i - mean of the other rewards of the group`.

    That equals `(r_i - mean_group) * G / (G - 1)`: a baseline that does not depend on `r_i` is unbiased.
    """
    group_size = rewards.shape[1]
    return _subtract_mean(rewards) * (group_size / (group_size - 1))


def reinforce_pp(rewards: Tensor) -> Tensor:
    """REINFORCE++ (https://arxiv.org/abs/2501.03262): `(r - mean_batch) / (std_batch + 1e-4)`; G may be 1."""
    centred = _subtract_mean(rewards.reshape(-1))
    return (centred / (_compute_std(centred) + _EPSILON)).reshape(rewards.shape)


def reinforce_pp_baseline(rewards: Tensor) -> Tensor:
    """REINFORCE++-baseline (same paper): `a = r - mean_group`, then `a / (std_batch(a) + 1e-4)`.

    The deviation is that of the centred rewards, not of the raw ones: how far prompts differ in
    difficulty does not shrink the advantages. The batch mean of `a` is 0 by construction.
    """
    centred = _subtract_mean(rewards)
    return centred / (_compute_std(centred.reshape(-1)) + _EPSILON)


# `gae` is not here: it needs a critic's values and makes one a token; see gae.py.
ADVANTAGES: dict[AdvantageName, Callable[[Tensor], Tensor]] = {
    "group_norm": group_norm,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
}


def _subtract_mean(rewards: Tensor) -> Tensor:
    """[..., n] minus its mean over the last axis; exactly 0 where all n are equal.

    The first value goes first: the float mean of three times 0.1 is not 0.1, and what is left of it,
    divided by `_EPSILON`, would be a gradient made of rounding.
    """
    shifted = rewards - rewards[..., :1]
    return shifted - shifted.mean(-1, keepdim=True)


def _compute_std(centred: Tensor) -> Tensor:
    """Deviation [..., 1] of values [..., n] whose mean is 0, over n - 1; 0, not NaN, for a single value."""
    degrees_of_freedom = max(centred.shape[-1] - 1, 1)
    return torch.sqrt(centred.square().sum(-1, keepdim=True) / degrees_of_freedom)
