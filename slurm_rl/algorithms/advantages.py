"""Rewards to advantages: how much better was this completion than what the policy usually does?

Every function maps rewards [P, G] float32 (P prompts, G completions of each) and `known` [P, G] bool to scores
[P, G], one a completion. A reward that is not known (its verifier failed) has no part in any mean, deviation or count,
and its own score is 0. To add one, write a function and a row in `ADVANTAGES` of config/registry.py.

What follows depends on the row:

    group_norm, dr_grpo, rloo, none             the score is the advantage of all tokens of the completion
    turn_rloo                                   an episode's reward less its score is the baseline of each of its turns
    gae, reinforce_pp, reinforce_pp_baseline    the score is the reward of the last token; GAE makes an advantage of
                                                each token, gae with a critic's values, the others without

REINFORCE++ (https://arxiv.org/abs/2501.03262, v9, eq. 8 to 10) and verl's `reinforce_plus_plus`: the advantage of token
t is the reward minus `coefficient * KL_i` summed over the tokens i >= t, then minus the mean and over the deviation of
all tokens of the batch; G may be 1. REINFORCE++-baseline subtracts the group's mean first, so that how far prompts
differ in difficulty does not shrink the advantages; its KL term is one of the loss, k2.

Generalised advantage estimation, https://arxiv.org/abs/1506.02438, eq. 16; `smoothing` is its lambda. `V_t` is what the
critic expects from token t on, before token t is known; after the last token there is nothing more to expect, so
`V_L = 0`. A completion of L tokens, t = 0..L-1:

    delta_t  = r_t + discount * V_(t+1) - V_t
    A_t      = delta_t + discount * smoothing * A_(t+1)
    return_t = A_t + V_t                                  what the critic learns

With discount and smoothing 1 the advantage is the rest of the rewards minus V_t.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slurm_rl.algorithms.losses import TokenLoss
from slurm_rl.algorithms.sequences import FloatArray

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


def nothing(rewards: Tensor, known: Tensor) -> Tensor:
    """0: rewards are measured and not learned from, as where a teacher alone is."""
    return torch.zeros_like(rewards)


def _subtract_mean(rewards: Tensor, known: Tensor) -> Tensor:
    """[P, G] minus the mean of the known ones of each row; exactly 0 where all of these are equal.

    The first of them goes first: the float mean of three times 0.1 is not 0.1, and what is left of it,
    divided by `_EPSILON`, would be a gradient made of rounding.
    """
    first = rewards.gather(-1, known.int().argmax(-1, keepdim=True))
    shifted = torch.where(known, rewards - first, 0.0)
    mean = shifted.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(known, shifted - mean, 0.0)


# Below this deviation a batch has no spread that could be normalised.
_SMALLEST_DEVIATION = 1e-8


def compute_gae(
    rewards: Sequence[FloatArray], values: Sequence[FloatArray], *, discount: float, smoothing: float
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Advantages and returns of completions, each [L] float32 with an L of its own.

    Args:
        rewards: of each completion, [L] each; see `spread_reward`.
        values: likewise.

    >>> reward, value = np.array([0.0, 0.0, 1.0], np.float32), np.array([0.5, 0.75, 0.25], np.float32)
    >>> advantages, returns = compute_gae([reward], [value], discount=1.0, smoothing=1.0)
    >>> advantages[0].tolist(), returns[0].tolist()
    ([0.5, 0.25, 0.75], [1.0, 1.0, 1.0])
    """
    lengths = [len(value) for value in values]
    assert [len(reward) for reward in rewards] == lengths, "one reward for each value"
    # Zeros behind the end are what V_L = 0 says.
    reward, value = _pad(rewards, lengths), _pad(values, lengths)
    advantages = np.zeros_like(value)
    later = np.zeros(len(lengths))
    for t in reversed(range(max(lengths, default=0))):
        delta = reward[:, t] + discount * value[:, t + 1] - value[:, t]
        later = delta + discount * smoothing * later
        advantages[:, t] = later
    returns = advantages + value
    return _cut(advantages, lengths), _cut(returns, lengths)


def spread_reward(score: float, kl: FloatArray | None, length: int, coefficient: float) -> FloatArray:
    """Rewards [length] of the tokens: `-coefficient * KL_t` at each, and the score at the last.

    Args:
        kl: [length]; None without a KL term in the reward.
    """
    rewards = np.zeros(length, dtype=np.float32) if kl is None else (-coefficient * kl).astype(np.float32)
    if length:
        rewards[-1] += score
    return rewards


def whiten(advantages: Sequence[FloatArray], kept: Sequence[bool]) -> list[FloatArray]:
    """The advantages minus their mean, over their deviation (with n), both over all tokens of the kept completions."""
    chosen = [values for values, keep in zip(advantages, kept, strict=True) if keep]
    tokens = np.concatenate(chosen).astype(np.float64) if chosen else np.zeros(0)
    if not len(tokens):
        return list(advantages)
    mean, deviation = tokens.mean(), tokens.std()
    return [((values - mean) / (deviation + _SMALLEST_DEVIATION)).astype(np.float32) for values in advantages]


def explained_variance(values: Sequence[FloatArray], returns: Sequence[FloatArray]) -> float:
    """`1 - Var(return - V) / Var(return)` over all tokens: 1 for a critic that knows, 0 for a constant."""
    value, result = np.concatenate(values).astype(np.float64), np.concatenate(returns).astype(np.float64)
    spread = float(result.var())
    return 0.0 if spread < _SMALLEST_DEVIATION else 1.0 - float((result - value).var()) / spread


def _pad(arrays: Sequence[FloatArray], lengths: Sequence[int]) -> npt.NDArray[np.float64]:
    """[S, longest + 1], zeros behind each array."""
    padded = np.zeros((len(arrays), max(lengths, default=0) + 1))
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def _cut(padded: npt.NDArray[np.float64], lengths: Sequence[int]) -> list[FloatArray]:
    return [row[:length].astype(np.float32) for row, length in zip(padded, lengths, strict=True)]


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
