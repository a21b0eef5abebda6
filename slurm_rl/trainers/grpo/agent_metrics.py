"""What came to each of several agents over one model. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

import numpy as np

from slurm_rl.algorithms.turn_credit import first_returns, turn_agents, turn_returns
from slurm_rl.data.groups import Completion, Group


def agent_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`agent/<name>/reward` and `agent/<name>/turns`, of sources in which several speak; nothing where one does.

    A reward is what turn_rloo credits without discount: that of the agent's own turns, and what no turn was given, such
    as a scorer's reward. Turns are over all episodes of these sources, so those of all agents add up to the episode's.
    """
    told: list[tuple[Completion, dict[str, float] | None]] = []
    for source in sorted({group.prompt.source for group in groups}):
        part = [group for group in groups if group.prompt.source == source]
        completions = [completion for group in part for completion in group.completions]
        if len({agent for completion in completions for agent in turn_agents(completion)}) > 1:
            results = [result for group in part for result in group.results]
            came = map(first_returns, completions, turn_returns(part, 1.0, None, 0.0))
            told += [
                (completion, None if result.value is None else of_each)
                for completion, result, of_each in zip(completions, results, came, strict=True)
            ]
    found: dict[str, float] = {}
    for agent in sorted({agent for completion, _ in told for agent in turn_agents(completion)}):
        turns = [turn_agents(completion).count(agent) for completion, _ in told]
        rewards = [came[agent] for _, came in told if came is not None and agent in came]
        found[f"agent/{name_agent(agent)}/turns"] = float(np.mean(turns))
        if rewards:
            found[f"agent/{name_agent(agent)}/reward"] = float(np.mean(rewards))
    return found


def name_agent(agent: str) -> str:
    """As part of a key, different for each: "" is `first`, who reads the row's prompt.

    >>> name_agent(""), name_agent("black"), name_agent("player 1/2"), name_agent("first")
    ('first', 'black', 'player%201%2F2', 'first_')
    """
    if re.fullmatch("first_*", agent):
        return f"{agent}_"
    return quote(agent, safe="", errors="backslashreplace") or "first"
