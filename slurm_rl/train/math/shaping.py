"""What is added to the rewards of a verifier before they become advantages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def punish_overlong(lengths: Sequence[int], max_tokens: int, share: float, penalty: float) -> Tensor:
    """Addition [S] to the rewards, in -penalty..0 (DAPO, https://arxiv.org/abs/2503.14476, eq. 13).

    With `buffer = share * max_tokens`: 0 up to `max_tokens - buffer` tokens, then falling by a straight line to
    `-penalty` at `max_tokens`.

    Args:
        lengths: [S] tokens of the completions.
        share: of `max_tokens`, 0..1; at 0 nothing is punished.
    """
    buffer = share * max_tokens
    if buffer == 0:
        return torch.zeros(len(lengths))
    over = torch.tensor(lengths, dtype=torch.float32) - (max_tokens - buffer)
    return -penalty * (over / buffer).clamp(0.0, 1.0)
