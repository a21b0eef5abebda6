import math

import pytest
import torch

from slurm_rl.algorithms.kl import compute_kl
from slurm_rl.algorithms.losses import ClipRange, CorrectionInputs, LossInputs, TokenLoss
from slurm_rl.config.registry import CORRECTIONS, POLICY_LOSSES

CLIP = ClipRange(low=0.2, high=0.3, dual=None)


def run_inputs(
    name: str, new: torch.Tensor, old: torch.Tensor, advantages: list[float], sequence_ids: list[int], clip: ClipRange
) -> tuple[TokenLoss, list[float]]:
    """Return the loss and its gradient by the new logprobs."""
    logprobs = new.clone().requires_grad_()
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=torch.tensor(advantages),
        sequence_ids=torch.tensor(sequence_ids, dtype=torch.int64),
        num_sequences=max(sequence_ids, default=0) + 1,
    )
    token_loss = POLICY_LOSSES[name].load()(inputs, clip)
    token_loss.loss.sum().backward()
    assert logprobs.grad is not None
    return token_loss, logprobs.grad.tolist()


def run_loss(
    name: str, ratios: list[float], advantages: list[float], sequence_ids: list[int], clip: ClipRange = CLIP
) -> tuple[TokenLoss, list[float]]:
    """Return loss and gradient at tokens with policy probability 0.5 and old probability 0.5 / ratio."""
    logprobs = torch.full((len(ratios),), math.log(0.5))
    return run_inputs(name, logprobs, logprobs - torch.tensor(ratios).log(), advantages, sequence_ids, clip)


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "cispo"])
def test_other_losses_have_no_dual_clip(name: str) -> None:
    with_dual, _ = run_loss(name, [50.0], [-1.0], [0], ClipRange(low=0.2, high=0.3, dual=1.1))
    without, _ = run_loss(name, [50.0], [-1.0], [0])
    assert with_dual.loss.tolist() == without.loss.tolist()


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_zero_advantage_is_not_clipped(name: str) -> None:
    token_loss, _ = run_loss(name, [9.0, 0.1], [0.0, 0.0], [0, 1], ClipRange(low=0.2, high=0.3, dual=3.0))
    assert token_loss.clipped.tolist() == [0, 0]


def test_gspo() -> None:
    # Sequence 0: log ratios log 4 and log 0.25 average to 0, so s = 1 where grpo would clip both.
    # Sequence 1: log 2.25 and 0 average to log 1.5, so s = 1.5 on both tokens, clipped at 1.3 since A > 0.
    # Gradient of sequence 0, token t: sum over both tokens of -s A / 2 = -s A = -2.
    token_loss, gradient = run_loss("gspo", [4.0, 0.25, 2.25, 1.0], [2.0, 2.0, 1.0, 1.0], [0, 0, 1, 1])
    assert token_loss.loss.tolist() == pytest.approx([-2.0, -2.0, -1.3, -1.3])
    assert token_loss.clipped.tolist() == [0, 0, 1, 1]
    assert gradient == pytest.approx([-2.0, -2.0, 0.0, 0.0])


def test_gspo_shares_and_gspo_token_separates_gradients() -> None:
    # s = 1.21^(1/2) = 1.1; losses -1.1 * 2 and -1.1 * 4 either way.
    # gspo: each token's gradient is -1.1 (2 + 4) / 2 = -3.3. gspo_token: its own, -2.2 and -4.4.
    together, shared = run_loss("gspo", [1.21, 1.0], [2.0, 4.0], [0, 0])
    apart, own = run_loss("gspo_token", [1.21, 1.0], [2.0, 4.0], [0, 0])
    assert together.loss.tolist() == pytest.approx([-2.2, -4.4])
    assert apart.loss.tolist() == pytest.approx([-2.2, -4.4])
    assert shared == pytest.approx([-3.3, -3.3])
    assert own == pytest.approx([-2.2, -4.4])


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(("new", "old"), [(-0.1, -200.0), (-200.0, -0.1)])
def test_extreme_ratios_have_finite_loss_and_gradient(name: str, advantage: float, new: float, old: float) -> None:
    # exp(200) overflows float32; infinity times an advantage, or a gradient, of 0 would be NaN.
    token_loss, gradient = run_inputs(name, torch.tensor([new]), torch.tensor([old]), [advantage], [0], CLIP)
    assert token_loss.loss.isfinite().all() and all(map(math.isfinite, gradient))


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_sequences_without_trained_tokens(name: str) -> None:
    # One of three sequences is empty; anomaly detection also finds a NaN that stays inside backward.
    with torch.autograd.set_detect_anomaly(True):
        token_loss, gradient = run_loss(name, [1.1, 1.1], [1.0, 1.0], [0, 2])
    assert token_loss.loss.isfinite().all()
    assert all(map(math.isfinite, gradient))
    assert run_loss(name, [], [], [])[0].loss.shape == (0,)


@pytest.mark.parametrize(
    ("estimator", "expected", "gradient"),
    [
        # d = log 0.5 - log 0.25 = log 2, then d = log 0.5 - log 1 = -log 2
        ("k1", [math.log(2), -math.log(2)], [1.0, 1.0]),
        ("k2", [math.log(2) ** 2 / 2, math.log(2) ** 2 / 2], [math.log(2), -math.log(2)]),
        # exp(-d) - 1 + d: 0.5 - 1 + log 2, then 2 - 1 - log 2; its derivative is 1 - exp(-d)
        ("k3", [math.log(2) - 0.5, 1 - math.log(2)], [0.5, -1.0]),
    ],
)
def test_kl_and_gradient_by_hand(estimator: str, expected: list[float], gradient: list[float]) -> None:
    logprobs = torch.tensor([0.5, 0.5]).log().requires_grad_()
    found = compute_kl(logprobs, torch.tensor([0.25, 1.0]).log(), estimator)
    assert found.tolist() == pytest.approx(expected)
    [found] = torch.autograd.grad(found.sum(), logprobs)
    assert found.tolist() == pytest.approx(gradient)


def test_k3_is_precise_near_zero() -> None:
    # d = 1e-3: exp(-d) - 1 + d = d^2/2 - d^3/6 + ... = 4.99833e-7; 1 - d in float32 leaves 3 digits of it.
    got = compute_kl(torch.tensor([1e-3]), torch.tensor([0.0]), "k3")
    assert got.item() == pytest.approx(4.99833e-7, rel=1e-3)


def test_k3_value_and_gradient_are_bounded() -> None:
    # exp(200) overflows to infinity, and so does its gradient.
    logprobs = torch.tensor([-250.0, -0.1]).requires_grad_()
    found = compute_kl(logprobs, torch.tensor([-0.1, -250.0]), "k3")
    assert found.tolist() == pytest.approx([math.exp(20) - 21, 19 + math.exp(-20)])
    found.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]


RATIOS = [0.25, 0.5, 1.0, 2.0, 8.0]


def correct(
    name: str, log_ratio: torch.Tensor, low: float, high: float, lengths: list[int] | None = None
) -> list[float]:
    lengths = lengths or [len(log_ratio)]
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    inputs = CorrectionInputs(log_ratio=log_ratio, sequence_ids=ids, num_sequences=len(lengths), low=low, high=high)
    found = CORRECTIONS[name].load()(inputs)
    assert found.dtype == torch.float32 and found.isfinite().all() and (found >= 0).all()
    return found.tolist()


@pytest.mark.parametrize(
    ("name", "low", "high", "weights"),
    [
        ("geometric_mask", 0.9, 1.2, (1.0, 0.0)),
        ("geometric_mask", 0.4, 1.1, (0.0, 1.0)),
        ("sequence_mask", 0.9, 2.1, (2.0, 0.0)),
        ("sequence_mask", 0.4, 1.9, (0.0, 0.5)),
        ("sequence_mask", 0.0, 1.9, (0.0, 0.5)),
    ],
)
def test_sequence_corrections_use_product_or_geometric_mean(
    name: str, low: float, high: float, weights: tuple[float, float]
) -> None:
    # The product of the five ratios is 2, their geometric mean 1.149. The second sequence has 0.5, the third no token.
    log_ratio, lengths = torch.tensor([*RATIOS, 0.5]).log(), [5, 1, 0]
    assert correct(name, log_ratio, low, high, lengths) == pytest.approx([weights[0]] * 5 + [weights[1]])


@pytest.mark.parametrize(
    ("num_tokens", "each", "product", "mean"),
    [(100, 0.05, 0.0, 1.0), (100, 0.005, 1.6487, 1.0), (400, -0.005, 0.0, 1.0)],
)
def test_sequence_mask_of_long_sequence_differs_from_geometric_mask(
    num_tokens: int, each: float, product: float, mean: float
) -> None:
    log_ratio = torch.full((num_tokens,), each)
    assert correct("sequence_mask", log_ratio, 0.5, 2.0)[0] == pytest.approx(product, abs=1e-4)
    assert correct("geometric_mask", log_ratio, 0.5, 2.0)[0] == mean


@pytest.mark.parametrize("name", CORRECTIONS)
def test_same_policy_has_unit_correction_without_overflow(name: str) -> None:
    assert correct(name, torch.zeros(3), 0.5, 2.0) == [1.0] * 3
    assert len(correct(name, torch.tensor([-1e4, 1e4]), 0.5, 2.0)) == 2
    assert correct(name, torch.zeros(0), 0.5, 2.0) == []
