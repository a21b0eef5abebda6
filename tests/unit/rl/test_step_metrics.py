from collections.abc import Sequence
from dataclasses import replace

import pytest

from slurm_rl.data.groups import Details, Group, Turn
from slurm_rl.trainers.grpo.agent_metrics import agent_metrics, name_agent
from slurm_rl.trainers.grpo.step_metrics import (
    accuracy,
    count_failed,
    pass_metrics,
    sampling_metrics,
    source_accuracy,
    staleness_metrics,
    training_metrics,
)
from tests.unit.rl.batch_kit import make_group, make_result

Said = Sequence[tuple[str, float | None]]
"""Agent and reward of each turn."""
WON: Said = [("", None), ("black", -1.0), ("", 1.0)]
LOST: Said = [("", -1.0), ("black", 1.0)]


def play(values: Sequence[float | None], said: Sequence[Said], source: str = "") -> Group:
    group = make_group(0, values, source=source)
    turns = [[Turn(0, 1, "7", reward=reward, agent=agent) for agent, reward in one] for one in said]
    completions = [
        replace(completion, details=Details(one)) for completion, one in zip(group.completions, turns, strict=True)
    ]
    return replace(group, completions=completions)


def judge(scores: Sequence[float | None], source: str = "") -> Group:
    """Return a group that a verifier scored; its rewards are half of the scores."""
    results = [
        make_result(None) if score is None else make_result(score / 2, {"arithmetic": score, "format": 1.0})
        for score in scores
    ]
    return replace(make_group(0, scores, source=source), results=results)


def test_sampling_metrics_count_failures_apart_from_zeros() -> None:
    metrics = sampling_metrics([make_group(0, [1.0, 0.0], [2, 1]), make_group(1, [1.0, None], [1, 1])])
    assert metrics["reward/mean"] == 2 / 3
    assert metrics["reward/failed"] == metrics["reward/failed_hang"] == 1.0
    assert metrics["tokens/sampled"] == 5.0 and metrics["completion/length_mean"] == 1.25
    assert sampling_metrics([make_group(0, [1.0, None, 1.0])])["reward/groups_with_signal"] == 0.0


def test_scorer_metrics_are_averaged_where_reported() -> None:
    results = [make_result(1.0, {"length": 3.0, "rare": 5.0}), make_result(0.0, {"length": 0.0}), make_result(None)]
    metrics = sampling_metrics([replace(make_group(0, [1.0, 0.0, None]), results=results)])
    assert metrics["score/length"] == 1.5 and metrics["score/rare"] == 5.0


def test_pass_at_powers_of_two_over_all_prompts() -> None:
    found = pass_metrics([judge([1.0, 0.0, 0.0, 0.0]), judge([0.0] * 4)])
    assert found == {"accuracy/pass@2": pytest.approx(0.25), "accuracy/pass@4": pytest.approx(0.5)}
    assert pass_metrics([judge([1.0])]) == {}


def test_metrics_are_reported_per_source() -> None:
    groups = [make_group(0, [1.0, 0.0], source="games"), judge([1.0, 1.0], "sums"), judge([0.0, None], "sums")]
    found = sampling_metrics(groups)
    assert found["source/games/reward"] == 0.5 and found["source/games/prompts"] == 1
    assert found["source/sums/reward"] == pytest.approx(1 / 3) and found["source/sums/failed"] == 1
    assert found["source/sums/groups_with_signal"] == 0.0 and found["source/games/groups_with_signal"] == 1.0
    # Games have no answer verifier: their reward counts as accuracy, next to the verifier's scores for sums.
    assert accuracy(groups) == 3 / 5
    assert source_accuracy(groups, "sampled") == {"source/games/sampled": 0.5, "source/sums/sampled": 2 / 3}
    assert pass_metrics(groups) == {"accuracy/pass@2": 1.0}
    assert count_failed(groups) == 1
    lost = [judge([None, None], "sums")]
    assert accuracy(lost) is None and source_accuracy(lost, "sampled") == pass_metrics(lost) == {}
    single = [make_group(0, [1.0, 0.0])]
    assert not [key for key in sampling_metrics(single) if key.startswith("source/")]
    assert source_accuracy(single, "sampled") == {}


def test_agents_have_mean_reward_and_additive_turns() -> None:
    found = agent_metrics([play([0.0, 0.0], [WON, LOST]), play([0.0, 0.0], [WON, WON])])
    assert found == {
        "agent/first/reward": 0.5,
        "agent/first/turns": 7 / 4,
        "agent/black/reward": -0.5,
        "agent/black/turns": 1.0,
    }
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
    games, sums = play([0.0], [WON], "games"), make_group(1, [1.0, 1.0], source="sums")
    assert agent_metrics([sums, games]) == agent_metrics([games])
    assert agent_metrics([sums]) == agent_metrics([play([1.0], [[("", 1.0), ("", None)]])]) == {}


def test_agent_names_are_distinct() -> None:
    names = ["", "first", "first_", "black", "Black", "a b", "a%20b", "a/b", "\udc80", "é"]
    told = [name_agent(name) for name in names]
    assert len(set(told)) == len(names) and not any("/" in name or name == "" for name in told)
    assert (name_agent(""), name_agent("black")) == ("first", "black")


def test_staleness_is_mean_age_of_weights() -> None:
    groups = [make_group(0, [1.0], version=3), make_group(1, [1.0], version=5)]
    assert staleness_metrics(groups, 5, mixed=False) == {"rollout/staleness": 1.0}


def test_totals_average_tokens_and_take_maxima() -> None:
    minibatches = [
        {"loss": 1.0, "grad_norm": 2.0, "mismatch/mean": 3.0, "mismatch/max": 0.5, "policy/clip_fraction": 1.0},
        {"loss": 3.0, "grad_norm": 4.0, "mismatch/mean": 5.0, "mismatch/max": 0.75, "policy/clip_fraction": 1.0},
    ]
    found = training_metrics(minibatches, num_tokens=4, num_kept=8)
    assert found.pop("policy/clip_fraction") == 0.25  # tokens with advantage 0 count as unclipped
    assert found == {"policy/loss": 2.0, "policy/grad_norm": 3.0, "mismatch/mean": 2.0, "mismatch/max": 0.75}
