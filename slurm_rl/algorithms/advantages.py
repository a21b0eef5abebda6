"""Rewards to advantages: scores of completions, and generalised advantage estimation.

Each scoring function maps rewards [P, G] float32 (P prompts, G completions of each) and `known` [P, G] bool to scores
[P, G]. Failed rewards are not known: means, deviations and counts leave them out, and their score is 0. To add one,
write a function and a row in `ADVANTAGES` of config/registry.py, which determines how scores become advantages:

    group_norm, dr_grpo, rloo, none             the score is the advantage of all tokens of the completion
    turn_rloo                                   reward minus score is the baseline of each turn of the episode
    gae, reinforce_pp, reinforce_pp_baseline    the score is the reward of the last token, and GAE computes an
                                                advantage per token; gae with the critic's values, the others without

REINFORCE++ (https://arxiv.org/abs/2501.03262, v9, eq. 8 to 10) and verl's `reinforce_plus_plus`: the advantage of token
t is the reward minus `coefficient * KL_i` summed over the tokens i >= t, normalised by mean and deviation of all tokens
of the batch; G may be 1. REINFORCE++-baseline first subtracts the mean of the group, so that prompts of different
difficulty do not shrink the advantages; its KL term is in the loss (k2).

GAE, https://arxiv.org/abs/1506.02438, eq. 16; `smoothing` is its lambda. `V_t` is the critic's value before token t,
and `V_L = 0`. A completion of L tokens, t = 0..L-1:

    delta_t  = r_t + discount * V_(t+1) - V_t
    A_t      = delta_t + discount * smoothing * A_(t+1)
    return_t = A_t + V_t                                  target of the critic

With discount and smoothing 1 the advantage is the sum of the remaining rewards minus V_t.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slurm_rl.algorithms.losses import TokenLoss
from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.config.registry import AdvantageEntry
from slurm_rl.errors import ConfigError

_SHOWN_CHARS = 200
_EPSILON = 1e-4
"""Added to the deviation, as in TRL: nearly equal rewards must not get huge advantages."""
_SMALLEST_DEVIATION = 1e-8
"""Smallest deviation that is used to normalise."""


def compute_scores(row: AdvantageEntry, rewards: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the advantages that the registered function computes from rewards [P, G].

    Raises:
        ConfigError: a user's function did not return a finite number for each.
    """
    scores = row.load()(rewards, known)
    if not isinstance(scores, torch.Tensor) or scores.shape != rewards.shape or not torch.isfinite(scores).all():
        is_tensor = isinstance(scores, torch.Tensor)
        found = f"{list(scores.shape)}, {scores.flatten().tolist()}" if is_tensor else type(scores).__name__
        raise ConfigError(
            f"algorithm.advantage ({row.function}) must return one finite number per reward, {list(rewards.shape)}",
            seen=found if len(found) < _SHOWN_CHARS else f"{found[:_SHOWN_CHARS]}...",
            action="correct the function and submit again",
        )
    return scores


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
    """Leave one out (https://arxiv.org/abs/2402.14740): `r_i - mean of the others' rewards`, 0 without others.

    Equal to `(r_i - mean_group) * G / (G - 1)`. The baseline does not depend on `r_i`, so it is unbiased.
    """
    count = known.sum(-1, keepdim=True)
    return _subtract_mean(rewards, known) * (count / (count - 1).clamp(min=1))


def plain(rewards: Tensor, known: Tensor) -> Tensor:
    """Return the rewards; the baseline comes from the critic or the batch."""
    return torch.where(known, rewards, 0.0)


def nothing(rewards: Tensor, known: Tensor) -> Tensor:
    """Return zeros: rewards are only measured."""
    return torch.zeros_like(rewards)


def _subtract_mean(rewards: Tensor, known: Tensor) -> Tensor:
    """Subtract the mean of the known rewards of each row; exactly 0 if they are equal.

    The first reward is subtracted before, since the float mean of three times 0.1 is not 0.1, and the rounding error
    divided by `_EPSILON` would be a gradient.
    """
    first = rewards.gather(-1, known.int().argmax(-1, keepdim=True))
    shifted = torch.where(known, rewards - first, 0.0)
    mean = shifted.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(known, shifted - mean, 0.0)


def compute_gae(
    rewards: Sequence[FloatArray], values: Sequence[FloatArray], *, discount: float, smoothing: float
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return advantages and returns of completions, each [L] float32 with its own L.

    Args:
        rewards: rewards [L] of each completion; see `spread_reward`.
        values: values [L] of each completion.

    >>> reward, value = np.array([0.0, 0.0, 1.0], np.float32), np.array([0.5, 0.75, 0.25], np.float32)
    >>> advantages, returns = compute_gae([reward], [value], discount=1.0, smoothing=1.0)
    >>> advantages[0].tolist(), returns[0].tolist()
    ([0.5, 0.25, 0.75], [1.0, 1.0, 1.0])
    """
    lengths = [len(value) for value in values]
    assert [len(reward) for reward in rewards] == lengths, "one reward for each value"
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
    """Return rewards [length] of tokens: `-coefficient * KL_t` each, plus the score at the last.

    Args:
        kl: [length]; None without a KL term in the reward.
    """
    rewards = np.zeros(length, dtype=np.float32) if kl is None else (-coefficient * kl).astype(np.float32)
    if length:
        rewards[-1] += score
    return rewards


def whiten(advantages: Sequence[FloatArray], kept: Sequence[bool]) -> list[FloatArray]:
    """Normalise advantages by mean and deviation (with n) over all tokens of the kept completions."""
    chosen = [values for values, keep in zip(advantages, kept, strict=True) if keep]
    tokens = np.concatenate(chosen).astype(np.float64) if chosen else np.zeros(0)
    if not len(tokens):
        return list(advantages)
    mean, deviation = tokens.mean(), tokens.std()
    return [((values - mean) / (deviation + _SMALLEST_DEVIATION)).astype(np.float32) for values in advantages]


def explained_variance(values: Sequence[FloatArray], returns: Sequence[FloatArray]) -> float:
    """Return `1 - Var(return - V) / Var(return)` over all tokens: 1 for a perfect critic, 0 for a constant."""
    value, result = np.concatenate(values).astype(np.float64), np.concatenate(returns).astype(np.float64)
    spread = float(result.var())
    return 0.0 if spread < _SMALLEST_DEVIATION else 1.0 - float((result - value).var()) / spread


def _pad(arrays: Sequence[FloatArray], lengths: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return [S, longest + 1], padded with zeros."""
    padded = np.zeros((len(arrays), max(lengths, default=0) + 1))
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def _cut(padded: npt.NDArray[np.float64], lengths: Sequence[int]) -> list[FloatArray]:
    return [row[:length].astype(np.float32) for row, length in zip(padded, lengths, strict=True)]


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> TokenLoss:
    """`max((V - R)^2, (V_clipped - R)^2) / 2` [N], `V_clipped = V_old + clamp(V - V_old, -clip, clip)`.

    Pessimistic like PPO's policy loss: a value gains nothing from moving further than `clip` within a step. From
    OpenAI's baselines; see also https://arxiv.org/abs/2005.12729.

    Args:
        values: [N] with gradient.
        old_values: [N] at the start of the step.
        returns: [N] targets.
        clip: None: no clipping.
    """
    free = (values - returns).square()
    if clip is None:
        return TokenLoss(loss=0.5 * free, clipped=torch.zeros_like(free, requires_grad=False))
    bounded = (old_values + (values - old_values).clamp(-clip, clip) - returns).square()
    return TokenLoss(loss=0.5 * torch.maximum(free, bounded), clipped=(bounded > free).float())
