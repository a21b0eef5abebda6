"""Policy losses per token, their aggregation weights, and importance corrections.

A loss maps `LossInputs` and `ClipRange` to a `TokenLoss`. The total is `sum(loss * weight)` over all tokens of the
global batch with weights from `aggregation_weights`, so it does not depend on the distribution over workers and
micro-batches. To add a loss, write a function and a row in `POLICY_LOSSES` of config/registry.py. Losses must be linear
in the advantages, because the importance correction scales these.

Importance correction: the sampler differs from the policy because its weights are older, its distribution is truncated
or penalised (top_p, top_k, min_p, repetition penalty), or vLLM and torch round differently. With
`w_t = proximal(t) / sampler(t)`, where proximal is the policy at the start of the step, the loss of a token is
multiplied by `f(w_t)`, and the policy ratio is relative to proximal (decoupled PPO, AReaL,
https://arxiv.org/abs/2505.24298), so clipping ignores rounding. To add a correction, write a function and a row in
`CORRECTIONS` of config/registry.py: it maps the tokens of a micro-batch to weights [N], float32 and >= 0.

A sequence is a completion or one branch of an episode. Sequence ratios and masks (gspo, sequence_mask, geometric_mask)
are per branch. Weights are per completion, so at ratio 1 the gradient of gspo does not depend on the branches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slurm_rl.config.algorithm import AggregationName

MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8; infinite ratios would have NaN gradients."""


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """The trained tokens of one micro-batch; a sequence is never cut between two micro-batches."""

    logprobs: Tensor
    """[N] under the policy; the only field with a gradient."""
    old_logprobs: Tensor
    """[N] under the policy that sampled the tokens."""
    advantages: Tensor
    """[N]."""
    sequence_ids: Tensor
    """[N] int64 in 0..num_sequences-1."""
    num_sequences: int
    """S, of this micro-batch."""


@dataclass(frozen=True, kw_only=True)
class ClipRange:
    """The ratio may move between `1 - low` and `1 + high`; high > low is DAPO's clip-higher."""

    low: float
    high: float
    dual: float | None
    """grpo only: upper bound (> 1) of the ratio for negative advantages; None: no bound."""


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """Loss of each token."""

    loss: Tensor
    """[N], before weights."""
    clipped: Tensor
    """[N] 1.0 where the clip changed the loss, else 0.0; no gradient."""


def grpo(inputs: LossInputs, clip: ClipRange) -> TokenLoss:
    """PPO's clipped surrogate with `r_t = policy(t) / old(t)`: `-min(r_t A, clamp(r_t, 1-low, 1+high) A)`.

    PPO: https://arxiv.org/abs/1707.06347. GRPO: https://arxiv.org/abs/2402.03300.
    Separate bounds (clip-higher): DAPO, https://arxiv.org/abs/2503.14476. Where A < 0 the minimum leaves large ratios
    as they are, so there the loss is at most `-dual A` (dual clip, https://arxiv.org/abs/1912.09729, eq. 5).
    """
    return _clip_surrogate(exp_bounded(inputs.logprobs - inputs.old_logprobs), inputs.advantages, clip, clip.dual)


def gspo(inputs: LossInputs, clip: ClipRange) -> TokenLoss:
    """Return GSPO's loss (https://arxiv.org/abs/2507.18071, eq. 5): grpo's formula with one ratio per sequence.

    `s = exp(mean over the sequence's tokens of log r_t)` applies to every token of the sequence. Weighted by
    sequence-mean-token-mean the total is the paper's. Ratios of means are close to 1: clip at about 3e-4.
    """
    return _clip_surrogate(_compute_sequence_ratio(inputs), inputs.advantages, clip)


def gspo_token(inputs: LossInputs, clip: ClipRange) -> TokenLoss:
    """GSPO-token (same paper, eq. 14): `s_t = sg[s] * policy(t) / sg[policy(t)]`, sg the stopped gradient.

    Its value is gspo's, but the gradient of each token carries its own advantage.
    """
    own_gradient = torch.exp(inputs.logprobs - inputs.logprobs.detach())
    return _clip_surrogate(_compute_sequence_ratio(inputs).detach() * own_gradient, inputs.advantages, clip)


def cispo(inputs: LossInputs, clip: ClipRange) -> TokenLoss:
    """CISPO (MiniMax-M1, https://arxiv.org/abs/2506.13585): `-sg[min(r_t, 1 + high)] A log policy(t)`.

    The weight is clipped, not the gradient, so every token keeps learning. `clip.low` is not used, as in the paper's
    runs. `1 + high` is TRL's `epsilon_high` and ScaleRL's eps_max: their 5.0 is `clip_ratio_high=4.0` here. `clipped`
    counts both signs of the advantage; TRL's metric counts positive ones.
    """
    ratio = exp_bounded(inputs.logprobs.detach() - inputs.old_logprobs)
    weight = ratio.clamp(max=1 + clip.high)
    clipped = (ratio > weight) & (inputs.advantages != 0)
    return TokenLoss(loss=-weight * inputs.advantages * inputs.logprobs, clipped=clipped.float())


def aggregation_weights(
    mode: AggregationName, lengths: Sequence[int], constant_length: int | None = None
) -> npt.NDArray[np.float64]:
    """Return the weight [S] of the trained tokens of each of the S sequences of one optimizer step, over all workers.

    token-mean                 1 / sum(lengths)       DAPO: long completions weigh more
    sequence-mean-token-mean   1 / (S * length)       GRPO: each completion weighs the same
    sequence-mean              1 / S                  or 1 / (S * constant_length), Dr. GRPO

    Args:
        mode: a row of the table above.
        lengths: [S] number of trained tokens; an empty completion counts in S and weighs nothing.
        constant_length: for sequence-mean only.
    """
    num_tokens = np.asarray(lengths, dtype=np.float64)
    at_least_one = np.maximum(num_tokens, 1.0)  # an empty completion has no token to carry its weight
    denominators = {
        "token-mean": np.full_like(num_tokens, max(num_tokens.sum(), 1.0)),
        "sequence-mean-token-mean": len(lengths) * at_least_one,
        "sequence-mean": np.full_like(num_tokens, len(lengths) * (constant_length or 1)),
    }
    return np.where(num_tokens > 0, 1.0 / denominators[mode], 0.0)


def _clip_surrogate(ratio: Tensor, advantages: Tensor, clip: ClipRange, dual: float | None = None) -> TokenLoss:
    """Return `-min(ratio A, clamp(ratio) A)` [N]; with `dual`, at most `-dual A` where A < 0."""
    free = ratio * advantages
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high) * advantages
    worse, clipped = torch.minimum(free, bounded), bounded < free
    if dual is not None:
        floor = torch.where(advantages < 0, dual * advantages, -torch.inf)
        worse, clipped = torch.maximum(worse, floor), clipped | (worse < floor)
    return TokenLoss(loss=-worse, clipped=clipped.float())


def _compute_sequence_ratio(inputs: LossInputs) -> Tensor:
    """[N] `exp(mean log ratio)` of the sequence each token belongs to."""
    log_ratio = inputs.logprobs - inputs.old_logprobs
    return exp_bounded(mean_by_sequence(log_ratio, inputs.sequence_ids, inputs.num_sequences))


def sum_by_sequence(values: Tensor, sequence_ids: Tensor, num_sequences: int) -> Tensor:
    """Return the sums [S] of `values` [N] over the tokens of each sequence; 0 for a sequence without a token."""
    return values.new_zeros(num_sequences).index_add(0, sequence_ids, values)


def mean_by_sequence(values: Tensor, sequence_ids: Tensor, num_sequences: int) -> Tensor:
    """Return the mean of `values` [N] over each token's sequence, [N]."""
    counts = torch.bincount(sequence_ids, minlength=num_sequences)[sequence_ids]
    return sum_by_sequence(values, sequence_ids, num_sequences)[sequence_ids] / counts


def exp_bounded(log_ratio: Tensor) -> Tensor:
    """Return the ratio, bounded by MAX_LOG_RATIO."""
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


@dataclass(frozen=True, kw_only=True)
class CorrectionInputs:
    """The trained tokens of one micro-batch; a sequence is never cut between two micro-batches."""

    log_ratio: Tensor
    """[N] log w_t, without gradient."""
    sequence_ids: Tensor
    """[N] int64 in 0..num_sequences-1."""
    num_sequences: int
    low: float
    """Smallest ratio let through."""
    high: float
    """Largest."""


def token_tis(inputs: CorrectionInputs) -> Tensor:
    """Truncated importance sampling of each token: `min(w_t, high)`; `low` has no part in it.

    https://fengyao.notion.site/off-policy-rl, after Ionides 2008 (https://doi.org/10.1198/106186008X320456).
    """
    return exp_bounded(inputs.log_ratio).clamp(max=inputs.high)


def sequence_mask(inputs: CorrectionInputs) -> Tensor:
    """Return TRL's sequence_mask: the product of a sequence's `w_t` for each of its tokens, 0 outside [low, high].

    The bounds apply to a product, so they depend on the length: 100 tokens at 1.01 each make 2.7.
    """
    log_ratio = sum_by_sequence(inputs.log_ratio, inputs.sequence_ids, inputs.num_sequences)
    return _mask_outside(exp_bounded(log_ratio), inputs)[inputs.sequence_ids]


def geometric_mask(inputs: CorrectionInputs) -> Tensor:
    """Return 1 for each token of a sequence with a geometric mean of `w_t` in [low, high], else 0.

    The mean that gspo clips; the bounds do not depend on the length.
    """
    log_ratio = mean_by_sequence(inputs.log_ratio, inputs.sequence_ids, inputs.num_sequences)
    return (_mask_outside(exp_bounded(log_ratio), inputs) > 0).float()


def icepop(inputs: CorrectionInputs) -> Tensor:
    """Return IcePop's weight (Ring-1T, https://arxiv.org/abs/2510.18855): `w_t` within [low, high], 0 outside."""
    return _mask_outside(exp_bounded(inputs.log_ratio), inputs)


def _mask_outside(ratio: Tensor, inputs: CorrectionInputs) -> Tensor:
    return torch.where((ratio >= inputs.low) & (ratio <= inputs.high), ratio, 0.0)
