import math
from typing import Any

import pytest
import torch

from slurm_rl.algorithms.losses import sum_by_sequence
from slurm_rl.algorithms.preference import LogRatios, bradley_terry, center_scores, compute_dpo_loss
from slurm_rl.config.registry import DIVERGENCES, DPO_LOSSES
from slurm_rl.config.supervised import DPOConfig

LOG3 = math.log(3)


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


def test_bradley_terry() -> None:
    # sigmoid(log 3) = 3/4, so the loss is log(4/3) and the gradient -(1 - 3/4).
    chosen, rejected = torch.tensor([1 + LOG3], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    loss = bradley_terry(chosen, rejected, torch.zeros(1))
    assert loss.tolist() == pytest.approx([math.log(4 / 3)])
    assert gradients(loss, chosen, rejected) == pytest.approx([-0.25, 0.25])


def test_margin_raises_loss() -> None:
    # The first difference equals its margin: log 2. The second has no margin.
    loss = bradley_terry(torch.tensor([LOG3, LOG3]), torch.zeros(2), torch.tensor([LOG3, 0.0]))
    assert loss.tolist() == pytest.approx([math.log(2), math.log(4 / 3)])


def test_label_smoothing_weighs_swapped_pair() -> None:
    # 0.8 log(4/3) + 0.2 log 4; gradient beta (-0.8 / 4 + 0.2 * 3 / 4).
    ratios = make_ratios(LOG3, -LOG3)
    loss = DPO_LOSSES["sigmoid"].load()(ratios, DPOConfig(beta=0.5, label_smoothing=0.2))
    assert loss.tolist() == pytest.approx([0.8 * math.log(4 / 3) + 0.2 * math.log(4)])
    assert gradients(loss, ratios.chosen, ratios.rejected) == pytest.approx([-0.025, 0.025])


def test_centering_pulls_middle_of_pair_to_zero() -> None:
    chosen, rejected = torch.tensor([3.0], requires_grad=True), torch.tensor([-1.0], requires_grad=True)
    loss = center_scores(chosen, rejected)
    assert loss.tolist() == [4.0]
    assert gradients(loss, chosen, rejected) == [4.0, 4.0]
    assert center_scores(torch.tensor([2.0]), torch.tensor([-2.0])).tolist() == [0.0]


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
