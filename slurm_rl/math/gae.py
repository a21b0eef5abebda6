"""Per-token advantages from rewards and a critic's values. Pure.

`V_t` is what the critic expects from token t on, before token t is known; after the last token there is nothing
more to expect, so `V_L = 0`. A completion of L tokens, t = 0..L-1:

    delta_t  = r_t + discount * V_(t+1) - V_t
    A_t      = delta_t + discount * smoothing * A_(t+1)
    return_t = A_t + V_t                                  what the critic learns

Generalised advantage estimation, https://arxiv.org/abs/1506.02438, eq. 16; `smoothing` is its lambda. With
discount and smoothing 1 the advantage is the rest of the rewards minus V_t.

The critic's own loss stands here too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slurm_rl.math.losses import TokenLoss
from slurm_rl.math.sequences import FloatArray

# Below this deviation a batch has no spread that could be normalised.
_EPSILON = 1e-8


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
    return [((values - mean) / (deviation + _EPSILON)).astype(np.float32) for values in advantages]


def explained_variance(values: Sequence[FloatArray], returns: Sequence[FloatArray]) -> float:
    """`1 - Var(return - V) / Var(return)` over all tokens: 1 for a critic that knows, 0 for a constant."""
    value, result = np.concatenate(values).astype(np.float64), np.concatenate(returns).astype(np.float64)
    spread = float(result.var())
    return 0.0 if spread < _EPSILON else 1.0 - float((result - value).var()) / spread


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
