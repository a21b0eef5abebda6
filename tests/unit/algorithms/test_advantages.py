import numpy as np
import pytest
import torch

from slurm_rl.algorithms.advantages import compute_gae, explained_variance, spread_reward, value_loss, whiten
from slurm_rl.algorithms.kl import adapt_coefficient
from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.config.registry import ADVANTAGES

# Two prompts, three completions. Group means 1 and 3, batch mean 2.
REWARDS = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, 3.0]])


def compute(name: str, rewards: torch.Tensor, known: torch.Tensor | None = None) -> torch.Tensor:
    return ADVANTAGES[name].load()(rewards, torch.ones_like(rewards, dtype=torch.bool) if known is None else known)


@pytest.mark.parametrize("name", ["group_norm", "dr_grpo", "rloo", "reinforce_pp_baseline"])
def test_fewer_than_two_known_rewards_give_zero(name: str) -> None:
    known = torch.tensor([[False, True, False], [False] * 3])
    assert compute(name, REWARDS, known).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("name", ["group_norm", "dr_grpo", "rloo", "reinforce_pp_baseline"])
def test_equal_rewards_give_exact_zero(name: str) -> None:
    # 0.1 has no exact float: the plain mean of three of them is off by one unit in the last place.
    rewards = torch.tensor([[0.1, 0.1, 0.1], [0.7, 0.7, 0.7], [0.0, 0.5, 1.0]])
    advantages = compute(name, rewards)
    assert advantages[:2].tolist() == [[0.0] * 3] * 2
    assert advantages[2].tolist() != [0.0] * 3


def row(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float32)


def test_gae_equals_recursion_by_hand() -> None:
    # delta: 0.9*0.6-0.5 = 0.04, 0.9*0.8-0.6 = 0.12, 1-0.8 = 0.2; each plus 0.9*0.5 of the next advantage.
    advantages, returns = compute_gae([row(0, 0, 1)], [row(0.5, 0.6, 0.8)], discount=0.9, smoothing=0.5)
    assert advantages[0] == pytest.approx([0.04 + 0.45 * 0.21, 0.12 + 0.45 * 0.2, 0.2])
    assert returns[0] == pytest.approx([0.6345, 0.81, 1.0])


def test_score_is_at_last_token_and_kl_at_each() -> None:
    assert spread_reward(1.0, row(0.5, 0.25, 0), 3, 0.2) == pytest.approx([-0.1, -0.05, 1.0])
    assert spread_reward(-2.0, None, 2, 0.2).tolist() == [0, -2]
    assert spread_reward(1.0, row(), 0, 0.2).tolist() == []


def test_whitening_standardizes_known_tokens() -> None:
    found = whiten([row(1, 3), row(100), row(5)], [True, False, True])
    kept = np.concatenate([found[0], found[2]])
    assert kept == pytest.approx([-1.2247449, 0, 1.2247449])
    assert whiten([row(2, 2)], [True])[0].tolist() == [0, 0]
    assert whiten([row(2)], [False])[0].tolist() == [2]


def test_equal_tokens_are_whitened_to_exact_zero() -> None:
    # A rounding residue divided by a deviation near 0 would be a full-size step. Float32 summed in float64 has none.
    for size in range(1, 60):
        assert not whiten([row(*[0.1] * size), row(0.1)], [True, True])[0].any()


def test_explained_variance_of_perfect_and_constant_critic() -> None:
    returns = [row(1, 2), row(3)]
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance([row(7, 7), row(7)], returns) == 0.0
    assert explained_variance([row(1), row(2)], [row(4), row(4)]) == 0.0


def test_value_loss_is_maximum_of_clipped_and_unclipped() -> None:
    old, returns = torch.tensor([0.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, -1.0, 0.1])
    values = torch.tensor([0.1, 0.5, 0.5, 0.5], requires_grad=True)
    token = value_loss(values, old, returns, clip=0.2)
    # Inside the clip: (0.1-1)^2/2. Clipped towards the return: loss of 0.2. Clipped away from it: unclipped loss.
    assert token.loss.tolist() == pytest.approx([0.405, 0.32, 1.125, 0.08])
    assert token.clipped.tolist() == [0, 1, 0, 0]
    token.loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-0.9, 0.0, 1.5, 0.4])


def test_unclipped_value_loss_is_half_square() -> None:
    token = value_loss(torch.tensor([3.0]), torch.tensor([0.0]), torch.tensor([1.0]), None)
    assert (token.loss.tolist(), token.clipped.tolist()) == ([2.0], [0.0])


@pytest.mark.parametrize(
    ("kl", "expected"), [(6.0, 0.1), (6.6, 0.1 * 1.01), (60.0, 0.1 * 1.02), (5.4, 0.1 * 0.99), (0.0, 0.1 * 0.98)]
)
def test_kl_controller_moves_against_error_within_bound(kl: float, expected: float) -> None:
    assert adapt_coefficient(0.1, kl, target=6.0, num_completions=100, horizon=1000) == pytest.approx(expected)
