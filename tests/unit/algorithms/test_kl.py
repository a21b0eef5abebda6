import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.kl import compute_kl
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig, KLConfig
from slurm_rl.config.registry import KL_ESTIMATORS


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # d = log 0.5 - log 0.25 = log 2, then d = log 0.5 - log 1 = -log 2
        ("k1", [math.log(2), -math.log(2)]),
        ("k2", [math.log(2) ** 2 / 2, math.log(2) ** 2 / 2]),
        # exp(-d) - 1 + d: 0.5 - 1 + log 2, then 2 - 1 - log 2
        ("k3", [math.log(2) - 0.5, 1 - math.log(2)]),
    ],
)
def test_by_hand(estimator: str, expected: list[float]) -> None:
    got = compute_kl(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 1.0]).log(), estimator)
    torch.testing.assert_close(got, torch.tensor(expected))


@pytest.mark.parametrize("estimator", list(KL_ESTIMATORS))
def test_equal_models_have_zero_kl(estimator: str) -> None:
    logprobs = torch.tensor([-0.1, -7.3])
    assert compute_kl(logprobs, logprobs, estimator).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_is_unbiased_over_vocabulary(estimator: str) -> None:
    # 0.5 log(0.5/0.25) + 0.3 log(0.3/0.25) + 0.2 log(0.2/0.5) = 0.34657 + 0.05470 - 0.18326 = 0.21801
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.25, 0.25, 0.5])
    expectation = (policy * compute_kl(policy.log(), reference.log(), estimator)).sum()
    assert expectation.item() == pytest.approx(0.21801, abs=1e-5)


@pytest.mark.parametrize("steps_taken", [0.0, 0.7], ids=["on-policy", "after-a-step"])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_bias_corrected_kl_has_exact_gradient(bias_correction: bool, steps_taken: float) -> None:
    """Use the loss of a policy over 7 tokens, weighted by the sampler's probabilities."""
    random = torch.Generator().manual_seed(0)
    old, reference, moved = (torch.randn(7, generator=random, dtype=torch.float64) for _ in range(3))
    logits = (old + steps_taken * moved).requires_grad_()
    logprobs, old_logprobs, ref_logprobs = logits.log_softmax(0), old.log_softmax(0), reference.log_softmax(0)
    config = AlgorithmConfig(kl=KLConfig(coef=1.0, bias_correction=bias_correction))
    batch = replace(
        build_packed_batch([TrainSequence(token_ids=np.arange(8), trained_from=1)]),
        weights=old_logprobs.exp(),
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
    )
    loss, _ = build_policy_loss(config, None)(batch, logprobs, torch.zeros(7))
    [gradient] = torch.autograd.grad(loss, logits, retain_graph=True)
    [exact] = torch.autograd.grad((logprobs.exp() * (logprobs - ref_logprobs)).sum(), logits)
    error = (gradient - exact).norm() / exact.norm()
    assert error < 1e-12 if bias_correction else error > 0.1


def test_k3_is_precise_near_zero() -> None:
    # d = 1e-3: exp(-d) - 1 + d = d^2/2 - d^3/6 + ... = 4.99833e-7; 1 - d in float32 leaves 3 digits of it.
    got = compute_kl(torch.tensor([1e-3]), torch.tensor([0.0]), "k3")
    assert got.item() == pytest.approx(4.99833e-7, rel=1e-3)


def test_gradients() -> None:
    # Derivatives by d: k1 1, k2 d, k3 1 - exp(-d); at d = log 2 these are 1, 0.6931, 0.5.
    for estimator, expected in (("k1", 1.0), ("k2", math.log(2)), ("k3", 0.5)):
        logprobs = torch.tensor([0.5]).log().requires_grad_()
        compute_kl(logprobs, torch.tensor([0.25]).log(), estimator).sum().backward()  # type: ignore[arg-type]
        assert logprobs.grad is not None
        assert logprobs.grad.item() == pytest.approx(expected)


def test_k3_value_and_gradient_are_bounded() -> None:
    # exp(200) overflows to infinity, and so does its gradient.
    logprobs = torch.tensor([-250.0, -0.1]).requires_grad_()
    found = compute_kl(logprobs, torch.tensor([-0.1, -250.0]), "k3")
    assert found.tolist() == pytest.approx([math.exp(20) - 21, 19 + math.exp(-20)])
    found.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]
