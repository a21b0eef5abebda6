"""Rewards and turns of several agents that share one model. Pure."""

import re
from collections.abc import Sequence
from urllib.parse import quote

import numpy as np

from slurm_rl.algorithms.turn_credit import first_returns, turn_agents, turn_returns
from slurm_rl.data.groups import Group, Trajectory


def agent_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return `agent/<name>/reward` and `agent/<name>/turns` of sources with several agents.

    The reward is the undiscounted credit of turn_rloo: rewards of the agent's turns plus rewards without a turn, like
    a scorer's. Turns are means over all episodes of these sources, so they sum to the turns of an episode.
    """
    rows: list[tuple[Trajectory, dict[str, float] | None]] = []
    for source in sorted({group.prompt.source for group in groups}):
        part = [group for group in groups if group.prompt.source == source]
        completions = [completion for group in part for completion in group.completions]
        if len({agent for completion in completions for agent in turn_agents(completion)}) > 1:
            results = [result for group in part for result in group.results]
            came = map(first_returns, completions, turn_returns(part, 1.0, None, 0.0))
            rows += [
                (completion, None if result.value is None else of_each)
                for completion, result, of_each in zip(completions, results, came, strict=True)
            ]
    found: dict[str, float] = {}
    for agent in sorted({agent for completion, _ in rows for agent in turn_agents(completion)}):
        turns = [turn_agents(completion).count(agent) for completion, _ in rows]
        rewards = [came[agent] for _, came in rows if came is not None and agent in came]
        found[f"agent/{name_agent(agent)}/turns"] = float(np.mean(turns))
        if rewards:
            found[f"agent/{name_agent(agent)}/reward"] = float(np.mean(rewards))
    return found


def name_agent(agent: str) -> str:
    """Return a unique part of a metric name; "" (the agent of the row's prompt) becomes `first`.

    >>> name_agent(""), name_agent("black"), name_agent("player 1/2"), name_agent("first")
    ('first', 'black', 'player%201%2F2', 'first_')
    """
    if re.fullmatch("first_*", agent):
        return f"{agent}_"
    return quote(agent, safe="", errors="backslashreplace") or "first"
