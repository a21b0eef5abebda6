import math
from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from slurm_rl.algorithms.logprobs import Temperature, compute_token_hits, compute_token_logprobs

Measure: TypeAlias = Callable[[Tensor, Tensor, Temperature], tuple[Tensor, Tensor]]


@pytest.mark.parametrize("measure", [compute_token_logprobs, compute_token_hits])
def test_scalar_and_vector_temperature_are_bit_equal(measure: Measure) -> None:
    logits = 9 * torch.randn(700, 50, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(700) % 50
    for one in (0.01, 0.3, 0.7, 1.0, 1.7):
        for whole, by_row in zip(
            measure(logits, targets, one), measure(logits, targets, torch.full((700,), one)), strict=True
        ):
            assert torch.equal(whole, by_row)


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_mixed_temperatures_equal_separate_rows(entropy_gradient: bool) -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets, temperatures = torch.tensor([0, 7, 20, 49, 3, 3]), torch.tensor([0.5, 1.0, 0.5, 2.0, 0.7, 1.0])

    def measure(rows: slice, temperature: Temperature) -> tuple[Tensor, Tensor, Tensor]:
        found = compute_token_logprobs(logits[rows], targets[rows], temperature, entropy_gradient=entropy_gradient)
        loss = found[0].sum() + (3 * found[1].sum() if entropy_gradient else 0)
        [gradient] = torch.autograd.grad(loss, logits)
        return (*(values.detach() for values in found), gradient)

    together = measure(slice(None), temperatures)
    alone = [measure(slice(row, row + 1), one) for row, one in enumerate(temperatures.tolist())]
    for place in (0, 1):
        torch.testing.assert_close(together[place], torch.cat([one[place] for one in alone]), rtol=0, atol=1e-6)
    torch.testing.assert_close(together[2], torch.stack([one[2] for one in alone]).sum(0), rtol=0, atol=1e-6)


def test_logprob_gradient_is_exact_and_entropy_has_none() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().requires_grad_()
    logprobs, entropy = compute_token_logprobs(logits, torch.tensor([0]), 0.5)
    assert not entropy.requires_grad
    logprobs.sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([(1 - 2 / 3) / 0.5, -1 / 6 / 0.5, -1 / 6 / 0.5], abs=1e-6)


def test_bfloat16_logits_are_computed_in_float32() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.tensor([0, 7, 20, 49])
    logprobs, entropy = compute_token_logprobs(logits, targets, 0.7)
    assert logprobs.dtype == entropy.dtype == torch.float32
    expected = (logits.double() / 0.7).log_softmax(-1)
    torch.testing.assert_close(logprobs.double(), expected[torch.arange(4), targets], rtol=0, atol=1e-5)


def test_vocabulary_padded_with_minus_infinity() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]])
    logprobs, entropy = compute_token_logprobs(logits, torch.tensor([0]), 1.0)
    assert logprobs.item() == pytest.approx(-math.log(2))
    assert entropy.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("num_rows", [0, 1, 1300])
def test_entropy_of_more_rows_than_one_block(num_rows: int) -> None:
    logits = torch.randn(num_rows, 5, generator=torch.Generator().manual_seed(1))
    _, entropy = compute_token_logprobs(logits, torch.zeros(num_rows).long(), 1.0)
    log_p = logits.log_softmax(-1)
    torch.testing.assert_close(entropy, -(log_p.exp() * log_p).sum(-1))


def test_differentiable_entropy_has_exact_gradient() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).log().requires_grad_()
    _, entropy = compute_token_logprobs(logits, torch.tensor([0]), 1.0, entropy_gradient=True)
    assert entropy.item() == pytest.approx(1.5 * math.log(2), abs=1e-6)
    entropy.sum().backward()
    assert logits.grad is not None
    # -p (log p + H): p = 1/2 gives -1/2 (-log 2 + 1.5 log 2); a padded row of the vocabulary gets 0.
    expected = [-0.25 * math.log(2), 0.125 * math.log(2), 0.125 * math.log(2), 0.0]
    assert logits.grad[0].tolist() == pytest.approx(expected, abs=1e-6)
