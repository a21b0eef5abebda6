"""Credit per turn, if an environment gives rewards during an episode. Pure.

The return of a turn is `R_t = r_t + discount * R_(t+1)`. The baseline is the mean return of the other episodes of the
group: `A_t = R_t - mean of the others' R_0`. It does not depend on the episode's own actions, so the gradient of each
turn is unbiased (policy gradient theorem).

With several agents on one model each agent has its own returns and its own baseline, so that a game with a winner and a
loser teaches both.

The mean over other episodes at the same turn would not be a valid baseline: actions decide which episodes reach a turn.
"""

from collections.abc import Sequence

import numpy as np
import torch

from slurm_rl.algorithms.advantages import compute_scores
from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.config.registry import AdvantageEntry
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.rewards.results import RewardResult


def turn_returns(
    groups: Sequence[Group], discount: float, kl: Sequence[FloatArray] | None, coefficient: float
) -> list[list[float]]:
    """Return `R_t` of each turn of each completion.

    Args:
        kl: KL of the sampled tokens of each completion; `coefficient` times it is subtracted from their turn's reward.
    """
    pairs = [pair for group in groups for pair in zip(group.completions, group.results, strict=True)]
    found = []
    for index, (completion, result) in enumerate(pairs):
        rewards = _rewards(completion, result)
        if kl is not None:
            rewards = [
                reward - coefficient * float(part.sum())
                for reward, part in zip(rewards, _split(kl[index], completion), strict=True)
            ]
        found.append(_discount(rewards, turn_agents(completion), discount))
    return found


def spread_turns(completion: Trajectory, advantages: Sequence[float] | FloatArray) -> FloatArray:
    """Expand one number per turn to the sampled tokens [L]."""
    return np.repeat(np.asarray(advantages, dtype=np.float32), turn_lengths(completion))


def turn_lengths(completion: Trajectory) -> list[int]:
    """Return the number of sampled tokens of each turn; a single-turn completion has one turn."""
    return [turn.end - turn.start for turn in completion.turns] or [completion.num_sampled]


def turn_agents(completion: Trajectory) -> list[str]:
    """Return the agent of each turn."""
    return [turn.agent for turn in completion.turns] or [""]


def first_returns(completion: Trajectory, returns: Sequence[float]) -> dict[str, float]:
    """Return the total return of each agent."""
    pairs = zip(turn_agents(completion), returns, strict=True)
    return dict(reversed([*pairs]))


def compute_turn_advantages(
    row: AdvantageEntry, groups: Sequence[Group], known: torch.Tensor, returns: Sequence[Sequence[float]]
) -> list[FloatArray]:
    """Return advantages [L] of each completion: the return of the turn minus the baseline of its agent.

    They are 0 for an agent without another completion in the group.

    Args:
        returns: return of each turn of each completion.
    """
    completions = [completion for group in groups for completion in group.completions]
    wholes = [first_returns(*pair) for pair in zip(completions, returns, strict=True)]
    advantages = [np.zeros(len(turns), dtype=np.float32) for turns in returns]
    for agent in dict.fromkeys(agent for whole in wholes for agent in whole):
        came = torch.tensor([one.get(agent, 0.0) for one in wholes], dtype=torch.float32).view_as(known)
        has = known & torch.tensor([agent in one for one in wholes]).view_as(known)
        baselines = (came - compute_scores(row, came, has)).flatten().tolist()
        is_compared = (has & (has.sum(-1, keepdim=True) > 1)).flatten().tolist()
        for place, completion in enumerate(completions):
            for turn, name in enumerate(turn_agents(completion)):
                if name == agent:
                    advantages[place][turn] = (returns[place][turn] - baselines[place]) * is_compared[place]
    return [spread_turns(completion, found) for completion, found in zip(completions, advantages, strict=True)]


def _rewards(completion: Trajectory, result: RewardResult) -> list[float]:
    """Return the rewards of each turn. Rewards without a turn (scorer, length penalty) go to each agent's last turn."""
    given = [turn.reward or 0.0 for turn in completion.turns] or [0.0]
    if result.value is not None:
        rest = result.value - sum(given)
        for last in {agent: place for place, agent in enumerate(turn_agents(completion))}.values():
            given[last] += rest
    return given


def _split(values: FloatArray, completion: Trajectory) -> list[FloatArray]:
    return np.split(values, np.cumsum(turn_lengths(completion))[:-1])


def _discount(rewards: Sequence[float], agents: Sequence[str], discount: float) -> list[float]:
    """
    >>> _discount([1.0, 0.0, 4.0], ["", "", ""], 0.5), _discount([1.0, 8.0, 4.0], ["a", "b", "a"], 0.5)
    ([2.0, 2.0, 4.0], [3.0, 8.0, 4.0])
    """
    found, later = list[float](), dict[str, float]()
    for reward, agent in zip(reversed(rewards), reversed(agents), strict=True):
        later[agent] = reward + discount * later.get(agent, 0.0)
        found.append(later[agent])
    return found[::-1]
