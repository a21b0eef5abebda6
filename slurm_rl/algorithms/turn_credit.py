"""Credit by turn, where an environment gives rewards on the way. Pure.

A turn is credited with what comes from it on, `R_t = r_t + discount * R_(t+1)`, less a baseline of its whole episode,
which is the return of the other episodes of its group: `A_t = R_t - mean of the others' R_0`. Nothing that the episode
itself did is in that baseline, so the expected gradient is that of the policy gradient theorem, in each turn.

Of several agents over one model each has its own: what comes to it from its turn on, less what came to the same agent
in the other episodes, so that a game which one wins and one loses teaches both.

A mean over what other episodes have at the same turn is no baseline: which episodes get there follows from their
actions, and the expected gradient is then another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.data.groups import Completion, Group
from slurm_rl.rewards.results import RewardResult


def turn_returns(
    groups: Sequence[Group], discount: float, kl: Sequence[FloatArray] | None, coefficient: float
) -> list[list[float]]:
    """`R_t` of each turn of each completion, in order of groups; a completion of one turn has one.

    Args:
        kl: of each completion's sampled tokens, to be taken from their turn's reward times `coefficient`.
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


def spread_turns(completion: Completion, advantages: Sequence[float] | FloatArray) -> FloatArray:
    """[L] of the sampled tokens from one number a turn."""
    return np.repeat(np.asarray(advantages, dtype=np.float32), turn_lengths(completion))


def turn_lengths(completion: Completion) -> list[int]:
    """Sampled tokens of each turn; one that is no episode is one turn."""
    return [turn.end - turn.start for turn in completion.turns] or [completion.num_sampled]


def turn_agents(completion: Completion) -> list[str]:
    """Who replied in each turn."""
    return [turn.agent for turn in completion.turns] or [""]


def first_returns(completion: Completion, returns: Sequence[float]) -> dict[str, float]:
    """What came to each agent in all."""
    pairs = zip(turn_agents(completion), returns, strict=True)
    return dict(reversed([*pairs]))


def _rewards(completion: Completion, result: RewardResult) -> list[float]:
    """Of each turn. What no turn was given (a scorer's reward, what the length costs) is of each agent's last one."""
    given = [turn.reward or 0.0 for turn in completion.turns] or [0.0]
    if result.value is not None:
        rest = result.value - sum(given)
        for last in {agent: place for place, agent in enumerate(turn_agents(completion))}.values():
            given[last] += rest
    return given


def _split(values: FloatArray, completion: Completion) -> list[FloatArray]:
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
