"""Credit per turn: the expected gradient over every possible group equals the true gradient."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from slurm_rl.algorithms.credit import compute_advantages
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.data.groups import Details, Group, Trajectory, Turn
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import RewardItem, RewardResult

# Two turns of one token each. The second state depends on the first action, so there are three choices.
LOGITS = np.array([0.4, -0.3, 0.8])
FIRST = (0.0, 1.0)
SECOND = ((0.5, -1.0), (2.0, 0.25))
Actions = tuple[int, int]
PROMPT = EncodedPrompt(index=0, token_ids=[1], text="?", answer="")


def probability(choice: int, action: int) -> float:
    chance = 1 / (1 + np.exp(-LOGITS[choice]))
    return float(chance if action else 1 - chance)


def choices(actions: Actions) -> list[tuple[int, int]]:
    """Return (choice, action) of each turn."""
    return [(0, actions[0]), (1 + actions[0], actions[1])]


def chance(actions: Actions) -> float:
    return float(np.prod([probability(*choice) for choice in choices(actions)]))


def score_gradient(choice: int, action: int) -> np.ndarray:
    """Return the gradient of log p of an action by all logits."""
    found = np.zeros(3)
    found[choice] = action - probability(choice, 1)
    return found


def rewards(actions: Actions) -> tuple[float, float]:
    return FIRST[actions[0]], SECOND[actions[0]][actions[1]]


def episodes() -> Iterator[Actions]:
    return itertools.product((0, 1), repeat=2)  # type: ignore[return-value]


def true_gradient(discount: float) -> np.ndarray:
    """Return the policy gradient: each turn's score times its discounted future reward."""
    total = np.zeros(3)
    for actions in episodes():
        first, second = rewards(actions)
        to_go = [first + discount * second, second]
        for (choice, action), value in zip(choices(actions), to_go, strict=True):
            total += chance(actions) * value * score_gradient(choice, action)
    return total


def as_group(sampled: Sequence[Actions], failed: Sequence[int] = ()) -> Group:
    completions, results = [], []
    for place, actions in enumerate(sampled):
        first, second = rewards(actions)
        # The token in the middle is the environment's observation.
        turns = [Turn(0, 1, "", reward=first), Turn(2, 3, "", reward=second)]
        completions.append(Trajectory([actions[0], 9, actions[1]], [-1.0, -1.0], "", False, 0, Details(turns)))
        item = RewardItem(completion="", answer="")
        value = None if place in failed else first + second
        results.append(RewardResult(item=item, value=value, failure=None if value is not None else "crash"))
    return Group(PROMPT, completions, results)


def expected_gradient(config: AlgorithmConfig, size: int) -> np.ndarray:
    total = np.zeros(3)
    for sampled in itertools.product(episodes(), repeat=size):
        weight = float(np.prod([chance(actions) for actions in sampled]))
        advantages, _ = compute_advantages([as_group(sampled)], config, None, None)
        for actions, found in zip(sampled, advantages, strict=True):
            assert found.shape == (2,)
            for (choice, action), advantage in zip(choices(actions), found, strict=True):
                total += weight / size * float(advantage) * score_gradient(choice, action)
    return total


@pytest.mark.parametrize("discount", [1.0, 0.7])
@pytest.mark.parametrize("size", [2, 3])
def test_expected_gradient_is_exact(discount: float, size: int) -> None:
    config = AlgorithmConfig(advantage="turn_rloo", turn_discount=discount, group_size=size)
    assert expected_gradient(config, size) == pytest.approx(true_gradient(discount), abs=1e-6)


def test_by_hand() -> None:
    config = AlgorithmConfig(advantage="turn_rloo", group_size=2)
    # Rewards 0, 0.5 and 1, 2; the baseline of each turn is the other episode's total reward.
    found, _ = compute_advantages([as_group([(0, 0), (1, 0)])], config, None, None)
    assert [list(one) for one in found] == [[-2.5, -2.5], [2.5, 1.5]]


def test_failed_episode_is_excluded_from_credit_and_baseline() -> None:
    config = AlgorithmConfig(advantage="turn_rloo", group_size=3)
    sampled: list[Actions] = [(0, 0), (1, 1), (1, 0)]
    found, _ = compute_advantages([as_group(sampled, failed=[2])], config, None, None)
    alone, _ = compute_advantages([as_group(sampled[:2])], config, None, None)
    assert [list(one) for one in found[:2]] == [list(one) for one in alone]
    assert not found[2].any()
    # A single remaining episode has no baseline.
    found, _ = compute_advantages([as_group(sampled, failed=[0, 2])], config, None, None)
    assert not any(one.any() for one in found)


def test_unassigned_reward_belongs_to_last_turn() -> None:
    """The whole episode gets the scorer's reward and the length penalty if its turns have no rewards."""
    config = AlgorithmConfig(advantage="turn_rloo", group_size=2)
    item = RewardItem(completion="", answer="")
    turns = [Turn(0, 1, ""), Turn(1, 3, "")]
    completions = [Trajectory([1, 2, 3], [-1.0] * 3, "", False, 0, Details(turns))] * 2
    results = [RewardResult(item=item, value=value) for value in (1.0, 0.0)]
    found, _ = compute_advantages([Group(PROMPT, completions, results)], config, None, None)
    assert [list(one) for one in found] == [[1.0] * 3, [-1.0] * 3]
    # A single turn equals rloo.
    single = [Trajectory([1, 2], [-1.0] * 2, "", False, 0)] * 2
    found, _ = compute_advantages([Group(PROMPT, single, results)], config, None, None)
    assert [list(one) for one in found] == [[1.0] * 2, [-1.0] * 2]
