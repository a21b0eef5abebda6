"""Logits to the logprobs and the entropy of the tokens that were drawn."""

from typing import TypeAlias

import torch
from torch import Tensor

Temperature: TypeAlias = float | Tensor
"""One for all rows, or [N] float32."""

_ENTROPY_ROWS = 512
"""Rows per softmax of the entropy: 0.3 GB with a vocabulary of 150k."""


def compute_token_logprobs(
    logits: Tensor, targets: Tensor, temperature: Temperature, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """`log softmax(logits / temperature)[target]` and the entropy `-sum p log p` of each row, in nats.

    Always float32: in bfloat16 a ratio of two logprobs is mostly rounding error.

    Args:
        logits: [N, V] any float type, each row the one that predicts its target.
        targets: [N] int64.
        temperature: > 0; must be that of the sampling.
        entropy_gradient: make the entropy differentiable.

    Returns:
        logprobs [N] float32, differentiable, and entropy [N] float32.
    """
    scaled = divide(logits, temperature)
    chosen = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    entropy = _differentiate_entropy(scaled) if entropy_gradient else _compute_entropy(scaled)
    return chosen - torch.logsumexp(scaled, dim=-1), entropy


def compute_token_hits(
    logits: Tensor, targets: Tensor, temperature: Temperature, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """As `compute_token_logprobs`, but in place of the entropy 1.0 where the target is the likeliest token, else 0.0.

    Greedy decoding produces a sequence exactly if all its tokens are hits.
    """
    scaled = divide(logits, temperature)
    chosen = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled, dim=-1), (scaled.argmax(-1) == targets).float()


def divide(logits: Tensor, temperature: Temperature) -> Tensor:
    """Return [N, V] float32."""
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
