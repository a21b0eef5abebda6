from collections.abc import Sequence
from dataclasses import replace

import pytest

from slurm_rl.data.groups import Details, Group, Turn
from slurm_rl.trainers.grpo.agent_metrics import agent_metrics, name_agent
from slurm_rl.trainers.grpo.step_metrics import sampling_metrics
from tests.unit.rl.batch_kit import make_group

Said = Sequence[tuple[str, float | None]]
"""Agent and reward of each turn."""


def play(values: Sequence[float | None], said: Sequence[Said], source: str = "") -> Group:
    group = make_group(0, values)
    turns = [[Turn(0, 1, "7", reward=reward, agent=agent) for agent, reward in one] for one in said]
    completions = [
        replace(completion, details=Details(one)) for completion, one in zip(group.completions, turns, strict=True)
    ]
    return replace(group, prompt=replace(group.prompt, source=source), completions=completions)


WON: Said = [("", None), ("black", -1.0), ("", 1.0)]
LOST: Said = [("", -1.0), ("black", 1.0)]


def test_agents_have_mean_reward_and_turns() -> None:
    found = agent_metrics([play([0.0, 0.0], [WON, LOST]), play([0.0, 0.0], [WON, WON])])
    assert found == {
        "agent/first/reward": 0.5,
        "agent/first/turns": 7 / 4,
        "agent/black/reward": -0.5,
        "agent/black/turns": 1.0,
    }


def test_step_metrics_include_agents_with_additive_turns() -> None:
    found = sampling_metrics([play([0.0, 0.0], [WON, LOST])])
    assert found["agent/first/turns"] + found["agent/black/turns"] == found["episode/turns_mean"] == 2.5


def test_unassigned_reward_belongs_to_each_agent() -> None:
    """turn_rloo credits every agent; an agent without turns gets nothing."""
    said: Said = [("", 0.25), ("black", None)]
    alone: Said = [("", None)]
    found = agent_metrics([play([1.0, None, 0.5], [said, said, alone])])
    assert found["agent/first/reward"] == pytest.approx((1.0 + 0.5) / 2)
    assert found["agent/black/reward"] == pytest.approx(0.75)
    assert found["agent/black/turns"] == pytest.approx(2 / 3)
    assert agent_metrics([play([None], [said])]) == {"agent/first/turns": 1.0, "agent/black/turns": 1.0}


def test_single_agent_sources_have_no_agent_metrics() -> None:
    games, sums = play([0.0], [WON], "games"), make_group(1, [1.0, 1.0])
    sums = replace(sums, prompt=replace(sums.prompt, source="sums"))
    assert agent_metrics([sums, games]) == agent_metrics([games])
    assert agent_metrics([sums]) == agent_metrics([play([1.0], [[("", 1.0), ("", None)]])]) == {}


def test_agent_names_are_distinct() -> None:
    names = ["", "first", "first_", "black", "Black", "a b", "a%20b", "a/b", "\udc80", "é"]
    told = [name_agent(name) for name in names]
    assert len(set(told)) == len(names) and not any("/" in name or name == "" for name in told)
    assert (name_agent(""), name_agent("black")) == ("first", "black")
