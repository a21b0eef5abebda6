"""Start the scorers and environments of each source, and end them with the run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_set, each_source, set_key
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.workers.ray_driver import Cluster

if TYPE_CHECKING:
    from slurm_rl.envs.environments import Environments
    from slurm_rl.rewards.scorer import Scorer


@dataclass(frozen=True)
class Judge:
    """Scorer and environments of one source."""

    scorer: Scorer | None
    """None if environments give all rewards, or the critic's processes do."""
    environments: Environments | None
    """None for single turns."""


def open_judges(
    stack: ExitStack,
    config: RunConfig,
    run: RunDir,
    attempt: AttemptDir,
    cluster: Cluster,
    schemas: Mapping[str, Sequence[dict[str, Any]]],
) -> dict[str, Judge]:
    """Start the judges of each source and evaluation set; equal reward configs share processes.

    Args:
        stack: closes them.
        schemas: tool schemas by source.
    """

    from slurm_rl.workers.environment_hosts import open_environments
    from slurm_rl.workers.reward_services import open_rewards

    opened: list[tuple[RewardConfig, Scorer]] = []

    def scorer_of(reward: RewardConfig) -> Scorer | None:
        if not reward.names_a_scorer or reward.model.beside_critic:
            return None
        for known, scorer in opened:
            if known == reward:
                return scorer
        opened.append((reward, stack.enter_context(open_rewards(cluster, reward, run, attempt))))
        return opened[-1][1]

    report = functools.partial(append_event, run)

    def worlds_of(number: int, name: str, one: RunConfig) -> Environments | None:
        if not one.env.has_pool:
            return None
        return stack.enter_context(open_environments(cluster, one.env, schemas[name], report, number))

    sources = {} if config.eval.only else each_source(config)
    parts = {**sources, **{set_key(name): one for name, one in each_set(config).items()}}
    return {
        name: Judge(scorer_of(one.reward), worlds_of(number, name, one))
        for number, (name, one) in enumerate(parts.items())
    }
