"""Rules across sections: RULES hold for every config, RULES_OF_NEW_RUNS only for runs that have not started.

A rule is a function from a config to its problems, each with rule, value and next action.
"""

from collections.abc import Callable, Iterator
from typing import Final

from slurm_rl.config.rules.cluster import cluster_problems, node_group_problems, slurm_problems
from slurm_rl.config.rules.episodes import part_problems
from slurm_rl.config.rules.sampling import correction_problems, sampling_problems
from slurm_rl.config.rules.task import critic_problems, eval_job_problems, missing_keys, task_problems, unused_keys
from slurm_rl.config.run import RunConfig

Rule = Callable[[RunConfig], Iterator[str]]
RULES: Final[tuple[Rule, ...]] = (
    task_problems,
    critic_problems,
    eval_job_problems,
    sampling_problems,
    part_problems,
    node_group_problems,
    cluster_problems,
    slurm_problems,
)
RULES_OF_NEW_RUNS: Final[tuple[Rule, ...]] = (missing_keys, unused_keys, correction_problems)
