import pytest
import torch

from slurm_rl.config.registry import ADVANTAGES

# Two prompts, three completions. Group means 1 and 3, batch mean 2.
REWARDS = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, 3.0]])


def compute(name: str, rewards: torch.Tensor, known: torch.Tensor | None = None) -> torch.Tensor:
    return ADVANTAGES[name].load()(rewards, torch.ones_like(rewards, dtype=torch.bool) if known is None else known)


def check(name: str, expected: list[list[float]]) -> None:
    torch.testing.assert_close(compute(name, REWARDS), torch.tensor(expected), rtol=0, atol=1e-6)


def test_group_norm() -> None:
    # Centred -1 0 1, variance (1 + 0 + 1) / (3 - 1) = 1, so each is divided by 1.0001.
    check("group_norm", [[-1 / 1.0001, 0, 1 / 1.0001], [0, 0, 0]])


def test_dr_grpo() -> None:
    check("dr_grpo", [[-1.0, 0, 1], [0, 0, 0]])


def test_rloo() -> None:
    # 0 - (1 + 2) / 2 = -1.5;  1 - (0 + 2) / 2 = 0;  2 - (0 + 1) / 2 = 1.5
    check("rloo", [[-1.5, 0, 1.5], [0, 0, 0]])


def test_token_advantage_is_at_most_centred() -> None:
    check("reinforce_pp", REWARDS.tolist())
    check("gae", REWARDS.tolist())
    check("reinforce_pp_baseline", [[-1.0, 0, 1], [0, 0, 0]])


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_unknown_reward_is_excluded_from_baseline(name: str) -> None:
    rewards = torch.tensor([[-5.0, -5.5, -4.5, -5.2]])
    alone = compute(name, rewards)
    for failed in (0.0, 1e6):
        for place in (0, 2, 4):
            row = torch.cat([rewards[:, :place], torch.tensor([[failed]]), rewards[:, place:]], -1)
            known = torch.arange(5).unsqueeze(0) != place
            found = compute(name, row, known)
            assert found[0, place] == 0
            assert torch.equal(found[known], alone[0])


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
