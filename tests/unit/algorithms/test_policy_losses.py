import math

import pytest
import torch

from slurm_rl.algorithms.losses import ClipRange, LossInputs, TokenLoss
from slurm_rl.config.registry import POLICY_LOSSES

CLIP = ClipRange(low=0.2, high=0.3, dual=None)


def run_loss(
    name: str, ratios: list[float], advantages: list[float], sequence_ids: list[int], clip: ClipRange = CLIP
) -> tuple[TokenLoss, list[float]]:
    """Return loss and gradient at tokens with policy probability 0.5 and old probability 0.5 / ratio."""
    logprobs = torch.full((len(ratios),), math.log(0.5)).requires_grad_()
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach() - torch.tensor(ratios).log(),
        advantages=torch.tensor(advantages),
        sequence_ids=torch.tensor(sequence_ids),
        num_sequences=max(sequence_ids) + 1,
    )
    token_loss = POLICY_LOSSES[name].load()(inputs, clip)
    token_loss.loss.sum().backward()
    assert logprobs.grad is not None
    return token_loss, logprobs.grad.tolist()


def test_grpo() -> None:
    # ratio  A   r A   clamp(r) A   loss = -min   gradient = -r A, or 0 where the clamp was the smaller
    #  1.0   2   2.0      2.0          -2.0          -2.0
    #  1.5   1   1.5      1.3          -1.3           0        too far up, clipped at 1 + high
    #  0.5  -1  -0.5     -0.8           0.8           0        too far down, clipped at 1 - low
    #  1.5  -1  -1.5     -1.3           1.5           1.5      wrong direction: never clipped
    #  0.5   1   0.5      0.8          -0.5          -0.5      likewise
    token_loss, gradient = run_loss("grpo", [1.0, 1.5, 0.5, 1.5, 0.5], [2.0, 1.0, -1.0, -1.0, 1.0], [0] * 5)
    assert token_loss.loss.tolist() == pytest.approx([-2.0, -1.3, 0.8, 1.5, -0.5])
    assert token_loss.clipped.tolist() == [0, 1, 1, 0, 0]
    assert gradient == pytest.approx([-2.0, 0.0, 0.0, 1.5, -0.5])


def test_clip_higher_leaves_lower_bound() -> None:
    ratios, advantages = [1.25, 0.75], [1.0, -1.0]
    symmetric, _ = run_loss("grpo", ratios, advantages, [0, 0], ClipRange(low=0.2, high=0.2, dual=None))
    higher, _ = run_loss("grpo", ratios, advantages, [0, 0], ClipRange(low=0.2, high=0.28, dual=None))
    assert symmetric.clipped.tolist() == [1, 1]
    assert higher.clipped.tolist() == [0, 1]


def test_dual_clip_bounds_ratio_of_negative_advantage() -> None:
    """https://arxiv.org/abs/1912.09729, eq. 5: max(min(r A, clamp(r) A), c A) where A < 0."""
    # ratio   A   -min(r A, clamp(r) A)   c = 3
    #   2    -1            2                2       within the bound
    #  50    -2          100                6       no gradient
    #  50     1           -1.3             -1.3     a positive advantage is no matter of the bound
    #   0.5  -1            0.8              0.8
    #  50     0            0                0
    ratios, advantages = [2.0, 50.0, 50.0, 0.5, 50.0], [-1.0, -2.0, 1.0, -1.0, 0.0]
    token_loss, gradient = run_loss("grpo", ratios, advantages, [0] * 5, ClipRange(low=0.2, high=0.3, dual=3.0))
    assert token_loss.loss.tolist() == pytest.approx([2.0, 6.0, -1.3, 0.8, 0.0])
    assert token_loss.clipped.tolist() == [0, 1, 1, 1, 0]
    assert gradient == pytest.approx([2.0, 0.0, 0.0, 0.0, 0.0])
    free, gradient = run_loss("grpo", ratios, advantages, [0] * 5)
    assert free.loss.tolist() == pytest.approx([2.0, 100.0, -1.3, 0.8, 0.0])
    assert gradient[1] == pytest.approx(100.0)


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


def test_gspo_token_clips_sequence() -> None:
    # s = 1.5 as above: the token with ratio 1 is clipped with it; with A < 0 neither is.
    token_loss, gradient = run_loss("gspo_token", [2.25, 1.0, 2.25, 1.0], [1.0, 1.0, -1.0, -1.0], [0, 0, 1, 1])
    assert token_loss.loss.tolist() == pytest.approx([-1.3, -1.3, 1.5, 1.5])
    assert token_loss.clipped.tolist() == [1, 1, 0, 0]
    assert gradient == pytest.approx([0.0, 0.0, 1.5, 1.5])


def test_cispo() -> None:
    # log policy = log 0.5 = -0.693147
    # ratio  A   weight   loss = -w A log p   gradient = -w A, also where clipped
    #  0.1   1    0.1        0.0693147           -0.1      no lower bound
    #  2.0   1    1.3        0.9010913           -1.3
    #  2.0  -1    1.3       -0.9010913            1.3      the weight is capped at either sign
    token_loss, gradient = run_loss("cispo", [0.1, 2.0, 2.0], [1.0, 1.0, -1.0], [0, 0, 0])
    assert token_loss.loss.tolist() == pytest.approx([0.0693147, 0.9010913, -0.9010913])
    assert token_loss.clipped.tolist() == [0, 1, 1]
    assert gradient == pytest.approx([-0.1, -1.3, 1.3])


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_on_policy_losses_have_reinforce_gradient(name: str) -> None:
    # At ratio 1 the gradient of -r A and of -A log p is -A.
    _, gradient = run_loss(name, [1.0, 1.0, 1.0], [2.0, 2.0, -1.0], [0, 0, 1])
    assert gradient == pytest.approx([-2.0, -2.0, 1.0])


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(("new", "old"), [(-0.1, -200.0), (-200.0, -0.1)])
def test_extreme_ratios_have_finite_loss_and_gradient(name: str, advantage: float, new: float, old: float) -> None:
    # exp(200) overflows float32; infinity times an advantage, or a gradient, of 0 would be NaN.
    logprobs = torch.tensor([new], requires_grad=True)
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=torch.tensor([old]),
        advantages=torch.tensor([advantage]),
        sequence_ids=torch.tensor([0]),
        num_sequences=1,
    )
    token_loss = POLICY_LOSSES[name].load()(inputs, CLIP)
    token_loss.loss.sum().backward()
    assert logprobs.grad is not None
    assert token_loss.loss.isfinite().all()
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_sequences_without_trained_tokens(name: str) -> None:
    # One of three sequences is empty; anomaly detection also finds a NaN that stays inside backward.
    with torch.autograd.set_detect_anomaly(True):
        token_loss, gradient = run_loss(name, [1.1, 1.1], [1.0, 1.0], [0, 2])
    assert token_loss.loss.isfinite().all()
    assert all(map(math.isfinite, gradient))
    empty = torch.zeros(0)
    nothing = LossInputs(
        logprobs=empty, old_logprobs=empty, advantages=empty, sequence_ids=torch.zeros(0).long(), num_sequences=1
    )
    assert POLICY_LOSSES[name].load()(nothing, CLIP).loss.shape == (0,)
