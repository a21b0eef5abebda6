"""Rewards to advantages: how much better was this completion than what the policy usually does?

Every function maps rewards [P, G] float32 (P prompts, G completions of each) and `known` [P, G] bool to scores
[P, G], one a completion. A reward that is not known (its verifier failed) has no part in any mean, deviation or count,
and its own score is 0. To add one, write a function and a row in `ADVANTAGES` of config/tables.py.

What follows depends on the row:

    group_norm, dr_grpo, rloo                   the score is the advantage of all tokens of the completion
    gae, reinforce_pp, reinforce_pp_baseline    the score is the reward of the last token; gae.py makes an advantage of
                                                each token, gae with a critic's values, the others without

REINFORCE++ (https://arxiv.org/abs/2501.03262, v9, eq. 8 to 10) and verl's `reinforce_plus_plus`: the advantage of token
t is the reward minus `coefficient * KL_i` summed over the tokens i >= t, then minus the mean and over the deviation of
all tokens of the batch; G may be 1. REINFORCE++-baseline subtracts the group's mean first, so that how far prompts
differ in difficulty does not shrink the advantages; its KL term is one of the loss, k2.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Added to the deviation, as TRL does: a group whose rewards barely differ must not get huge advantages.
_EPSILON = 1e-4


def group_norm(rewards: Tensor, known: Tensor) -> Tensor:
    """GRPO (https://arxiv.org/abs/2402.03300): `(r - mean_group) / (std_group + 1e-4)`, std with G - 1."""
    centred = _subtract_mean(rewards, known)
    # 0, not NaN, for a single value.
    degrees_of_freedom = (known.sum(-1, keepdim=True) - 1).clamp(min=1)
    deviation = torch.sqrt(centred.square().sum(-1, keepdim=True) / degrees_of_freedom)
    return centred / (deviation + _EPSILON)


def dr_grpo(rewards: Tensor, known: Tensor) -> Tensor:
    """Dr. GRPO (https://arxiv.org/abs/2503.20783): `r - mean_group`.

    Without the division, prompts that are nearly always or nearly never solved weigh no more than the others.
    """
    return _subtract_mean(rewards, known)


def rloo(rewards: Tensor, known: Tensor) -> Tensor:
    """Leave one out (https://arxiv.org/abs/2402.14740): `r_i - mean of the other rewards of the group`.

    That equals `(r_i - mean_group) * G / (G - 1)`: a baseline that does not depend on `r_i` is unbiased. 0 for a
    completion without others.
    """
    count = known.sum(-1, keepdim=True)
    return _subtract_mean(rewards, known) * (count / (count - 1).clamp(min=1))


def plain(rewards: Tensor, known: Tensor) -> Tensor:
    """The reward as it is: the baseline comes later, from a critic or from the batch."""
    return torch.where(known, rewards, 0.0)


def _subtract_mean(rewards: Tensor, known: Tensor) -> Tensor:
    """[P, G] minus the mean of the known ones of each row; exactly 0 where all of these are equal.

    The first of them goes first: the float mean of three times 0.1 is not 0.1, and what is left of it,
    divided by `_EPSILON`, would be a gradient made of rounding.
    """
    first = rewards.gather(-1, known.int().argmax(-1, keepdim=True))
    shifted = torch.where(known, rewards - first, 0.0)
    mean = shifted.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(known, shifted - mean, 0.0)
