"""DAPO's penalty on long completions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_rl.config.algorithm import OverlongConfig
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.rewards.results import RewardResult


def overlong_penalty(length: int, max_tokens: int, config: OverlongConfig) -> float:
    """Return the length penalty of a completion, at most 0.

    DAPO (https://arxiv.org/abs/2503.14476, eq. 13) with L_max = max_tokens and L_cache = buffer_share * L_max: 0 up to
    L_max - L_cache, then (L_max - L_cache - length) / L_cache, which is -1 at the limit; times `penalty`.
    """
    buffer = config.buffer_share * max_tokens
    if buffer == 0:
        return 0.0
    return config.penalty * min(0.0, max(-1.0, (max_tokens - buffer - length) / buffer))


def shape_overlong(groups: Sequence[Group], config: OverlongConfig, max_tokens: Mapping[str, int]) -> list[Group]:
    """Return the groups with the penalty added to each reward that did not fail.

    Args:
        max_tokens: length limit by source.
    """

    def shape(result: RewardResult, completion: Trajectory, longest: int) -> RewardResult:
        penalty = overlong_penalty(len(completion.token_ids), longest, config)
        if result.value is None or penalty == 0:
            return result
        parts = {**result.parts, "overlong": penalty}
        return replace(result, value=result.value + penalty, unshaped=result.value, parts=parts)

    return [
        replace(
            group,
            results=[
                shape(result, completion, max_tokens[group.prompt.source])
                for result, completion in zip(group.results, group.completions, strict=True)
            ],
        )
        for group in groups
    ]
