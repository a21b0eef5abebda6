"""Worlds that a policy talks with for several turns. Without one, a completion is an episode of one turn."""

from __future__ import annotations

from typing import Annotated

from slurm_rl.config.functions import file_of
from slurm_rl.config.section import PositiveFloat, PositiveInt, Section


class EnvironmentConfig(Section):
    """Episodes of several turns."""

    name: Annotated[str, file_of("env.name")] | None = None
    """`file.py:Name`, a class with `reset(row, seed)` and `step(reply)` as slurm_rl.envs.environment.Environment has
    them; null: a completion is scored as it is."""
    max_turns: PositiveInt = 8
    """Replies of the policy in one episode; one that is not done by then ends as truncated, and is scored."""
    turn_tokens: PositiveInt | None = None
    """Longest reply of one turn, in tokens. rollout.max_tokens bounds the episode: all replies and all that the
    environment said; where another reply of this length would not fit it ends as truncated."""
    num_workers: PositiveInt = 1
    """Processes that hold environments, on the node of the trainer."""
    timeout_s: PositiveFloat = 10.0
    """Deadline of one step of one environment; one that is late costs its episode."""
    start_timeout_s: PositiveFloat = 120.0
    """Deadline of all workers to be up."""
