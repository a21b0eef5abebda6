import math
from typing import Any

import pytest
import torch

from slurm_rl.algorithms.losses import sum_by_sequence
from slurm_rl.algorithms.preference import LogRatios, bradley_terry, compute_dpo_loss
from slurm_rl.config.registry import DIVERGENCES, DPO_LOSSES
from slurm_rl.config.supervised import DPOConfig


def make_ratios(chosen: float, rejected: float) -> LogRatios:
    """Return ratios of one pair with 2 chosen and 4 rejected tokens."""
    return LogRatios(
        chosen=torch.tensor([chosen], requires_grad=True),
        rejected=torch.tensor([rejected], requires_grad=True),
        chosen_lengths=torch.tensor([2]),
        rejected_lengths=torch.tensor([4]),
    )


def gradients(loss: torch.Tensor, *of: torch.Tensor) -> list[float]:
    return [gradient.item() for gradient in torch.autograd.grad(loss.sum(), of)]


def test_far_pairs_stay_finite() -> None:
    scores = torch.tensor([1e4, -1e4])
    assert bradley_terry(scores, -scores, torch.zeros(2)).tolist() == [0.0, 2e4]


@pytest.mark.parametrize("loss", list(DPO_LOSSES))
@pytest.mark.parametrize("divergence", list(DIVERGENCES))
def test_extreme_ratios_have_finite_losses_and_gradients(loss: Any, divergence: Any) -> None:
    if divergence != "reverse_kl" and DPO_LOSSES[loss].absolute:
        return
    config = DPOConfig(loss=loss, divergence=divergence, label_smoothing=1e-3 if loss == "exo_pair" else 0.0)
    for size in (2e3, -2e3):
        ratios = make_ratios(size, -size)
        found = compute_dpo_loss(ratios, config)
        assert all(map(math.isfinite, [*found.tolist(), *gradients(found, ratios.chosen, ratios.rejected)]))


def test_sums_follow_sequence_ids() -> None:
    tokens = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    sums = sum_by_sequence(tokens, torch.tensor([0, 2, 0]), 3)
    assert sums.tolist() == [5.0, 0.0, 2.0]
    assert torch.autograd.grad(sums[0], tokens)[0].tolist() == [1.0, 0.0, 1.0]
