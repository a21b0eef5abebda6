"""Is what is sampled what can be learned from? Asked of new runs alone: one that began goes on as it was. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def check_sampling(config: RunConfig) -> None:
    """Raise ConfigError for a sampler that is another distribution than the policy while nothing corrects for it.

    The ratio of policy to sampler then begins below 1 or above for each token that the sampler favours, so clipping
    and gradient are of the cut and not of what the policy learns.
    """
    rollout = config.rollout
    if config.external is None and rollout.bends_distribution and config.algorithm.correction.kind is None:
        raise ConfigError(
            "algorithm.correction.kind must not be null with rollout.top_p, top_k, min_p or repetition_penalty, which "
            "make the sampler another distribution than the policy",
            seen=f"null with top_p={rollout.top_p}, top_k={rollout.top_k}, min_p={rollout.min_p} and "
            f"repetition_penalty={rollout.repetition_penalty}",
            action="set algorithm.correction.kind=auto, or leave these out",
        )
