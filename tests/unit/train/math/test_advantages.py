"""Advantages against numbers worked by hand."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from slurm_rl.config.algorithm import AdvantageName
from slurm_rl.train.math.advantages import ADVANTAGES

# Two prompts, three completions. Group means 1 and 3, batch mean 2.
REWARDS = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, 3.0]])


def check(name: AdvantageName, expected: list[list[float]]) -> None:
    torch.testing.assert_close(ADVANTAGES[name](REWARDS), torch.tensor(expected), rtol=0, atol=1e-6)


def test_table_has_every_name_of_the_config() -> None:
    assert {*ADVANTAGES, "gae"} == set(get_args(AdvantageName))


def test_group_norm() -> None:
    # Centred -1 0 1, variance (1 + 0 + 1) / (3 - 1) = 1, so each is divided by 1.0001.
    check("group_norm", [[-1 / 1.0001, 0, 1 / 1.0001], [0, 0, 0]])


def test_dr_grpo() -> None:
    check("dr_grpo", [[-1.0, 0, 1], [0, 0, 0]])


def test_rloo() -> None:
    # 0 - (1 + 2) / 2 = -1.5;  1 - (0 + 2) / 2 = 0;  2 - (0 + 1) / 2 = 1.5
    check("rloo", [[-1.5, 0, 1.5], [0, 0, 0]])


def test_reinforce_pp() -> None:
    # Centred -2 -1 0 1 1 1, variance (4 + 1 + 0 + 1 + 1 + 1) / 5 = 1.6, deviation 1.2649111.
    d = 1.2649111 + 1e-4
    check("reinforce_pp", [[-2 / d, -1 / d, 0], [1 / d, 1 / d, 1 / d]])


def test_reinforce_pp_baseline() -> None:
    # Centred -1 0 1 0 0 0, variance 2 / 5 = 0.4, deviation 0.6324555.
    d = 0.6324555 + 1e-4
    check("reinforce_pp_baseline", [[-1 / d, 0, 1 / d], [0, 0, 0]])


@pytest.mark.parametrize("name", ["group_norm", "dr_grpo", "rloo", "reinforce_pp_baseline"])
def test_a_group_of_equal_rewards_gets_exactly_zero(name: AdvantageName) -> None:
    # 0.1 has no exact float: the plain mean of three of them is off by one unit in the last place.
    rewards = torch.tensor([[0.1, 0.1, 0.1], [0.7, 0.7, 0.7], [0.0, 0.5, 1.0]])
    advantages = ADVANTAGES[name](rewards)
    assert advantages[:2].tolist() == [[0.0] * 3] * 2
    assert advantages[2].tolist() != [0.0] * 3


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_a_batch_of_equal_rewards_gets_exactly_zero(name: AdvantageName) -> None:
    assert not ADVANTAGES[name](torch.full((5, 7), 0.1)).any()


def test_reinforce_pp_of_a_single_completion_is_zero_not_nan() -> None:
    assert ADVANTAGES["reinforce_pp"](torch.tensor([[0.3]])).tolist() == [[0.0]]


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_shape_and_type_stay(name: AdvantageName) -> None:
    advantages = ADVANTAGES[name](torch.rand(3, 4))
    assert advantages.shape == (3, 4)
    assert advantages.dtype == torch.float32
