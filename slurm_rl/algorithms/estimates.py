"""Metrics of k samples of each of n prompts, with their standard errors. Pure; standard library only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts."""

    value: float
    error: float
    """Half of the 95 % interval: 1.96 standard errors clustered by prompt (Miller 2024,
    https://arxiv.org/abs/2411.00640, eq. 1 and section 2.1). 0 for a single prompt."""


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Chance that one of k samples is right, estimated without bias from n samples of which c are.

    `1 - C(n - c, k) / C(n, k)`, Chen et al. 2021 (https://arxiv.org/abs/2107.03374, eq. 1).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def estimate_mean(values: Sequence[float]) -> Estimate | None:
    """Return mean and error of one number per prompt; None for an empty list.

    >>> estimate_mean([1.0, 0.0, 1.0, 0.0]).value
    0.5
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Estimate(mean, 0.0)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Estimate(mean, _Z * math.sqrt(variance / len(values)))


def average_at_k(scores: Sequence[Sequence[float | None]]) -> Estimate | None:
    """Return avg@k: the mean over prompts of each prompt's mean score; None marks a failed sample.

    Failed samples are left out of their prompt's mean, and prompts with only failures out of the total.
    """
    known = [[score for score in row if score is not None] for row in scores]
    return estimate_mean([math.fsum(row) / len(row) for row in known if row])


def estimate_pass(scores: Sequence[Sequence[float | None]], k: int) -> Estimate | None:
    """pass@k over prompts, where a score of 1 and more is right; of the prompts with k samples that did not fail."""
    known = [[score for score in row if score is not None] for row in scores]
    return estimate_mean([pass_at_k(len(row), sum(score >= 1.0 for score in row), k) for row in known if len(row) >= k])
