"""Logits to the logprobs and the entropy of the tokens that were drawn."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Temperature: TypeAlias = float | Tensor
"""Of all rows, or [N] float32 of each."""

# Rows whose softmax is held at once for the entropy: with a vocabulary of 150k, 512 rows are 0.3 GB.
_ENTROPY_ROWS = 512


def compute_token_logprobs(
    logits: Tensor, targets: Tensor, temperature: Temperature, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """`log softmax(logits / temperature)[target]` and the entropy `-sum p log p` of each row, in nats.

    Float32 whatever the logits are: in bfloat16 a ratio of two logprobs is mostly rounding. The temperature is
    that of the sampling, or the ratio would compare two different distributions.

    Args:
        logits: [N, V] any float type, each row the one that predicts its target.
        targets: [N] int64.
        temperature: > 0, of all rows or of each.
        entropy_gradient: the entropy is differentiable, too.

    Returns:
        logprobs [N] float32, differentiable, and entropy [N] float32.
    """
    scaled = _over(logits, temperature)
    chosen = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    entropy = _differentiate_entropy(scaled) if entropy_gradient else _compute_entropy(scaled)
    return chosen - torch.logsumexp(scaled, dim=-1), entropy


def compute_token_hits(
    logits: Tensor, targets: Tensor, temperature: Temperature, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """As `compute_token_logprobs`, but in place of the entropy 1.0 where the target is the likeliest token, else 0.0.

    A sequence of hits alone is what greedy decoding writes, for each of its tokens is chosen after those before it.
    """
    scaled = _over(logits, temperature)
    chosen = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled, dim=-1), (scaled.argmax(-1) == targets).float()


def _over(logits: Tensor, temperature: Temperature) -> Tensor:
    """[N, V] float32. One temperature in either form gives the same bits on CPU; on GPUs the last one may differ."""
    return logits.float() / (temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature)


def _differentiate_entropy(scaled: Tensor) -> Tensor:
    """[N, V] -> [N]; where p is 0, neither log p nor its gradient is taken."""
    log_p = scaled.log_softmax(-1)
    return -(log_p.exp() * log_p.masked_fill(log_p.isneginf(), 0.0)).sum(-1)


@torch.no_grad()
def _compute_entropy(scaled: Tensor) -> Tensor:
    """[N, V] -> [N]; `entr` is 0 at p = 0, so a vocabulary padded with -inf is no NaN."""
    rows = scaled.split(_ENTROPY_ROWS)
    return torch.cat([torch.special.entr(part.softmax(-1)).sum(-1) for part in rows])
