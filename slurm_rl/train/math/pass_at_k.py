"""The chance that at least one of k samples is right, from n >= k samples."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """`1 - C(n - c, k) / C(n, k)`: unbiased (Chen et al. 2021, https://arxiv.org/abs/2107.03374, eq. 1).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    assert 1 <= k <= num_samples, (k, num_samples)
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def mean_pass_at_k(num_samples: int, num_right: Sequence[int]) -> dict[str, float]:
    """Mean over prompts for k = 2, 4, 8, ... below n, and n itself; nothing for n = 1, where it is the accuracy.

    Args:
        num_samples: n, of each prompt.
        num_right: c of each prompt; at least one prompt.
    """
    powers = [2**e for e in range(1, num_samples.bit_length()) if 2**e < num_samples]
    wanted = [*powers, num_samples] if num_samples > 1 else []
    return {f"pass@{k}": sum(pass_at_k(num_samples, right, k) for right in num_right) / len(num_right) for k in wanted}
