"""Changes to scored rewards: a user's function of a whole group, and a penalty on long completions.

    def score(prompt, completions, rewards):          algorithm.group_reward=file.py:score
        shortest = min(len(one.token_ids) for one in completions)
        return [reward if len(one.token_ids) == shortest else 0.0 for one, reward in zip(completions, rewards)]

The trainer calls it with the prompt (`EncodedPrompt`), its completions or episodes (`Trajectory`, with `turns`) and
their rewards: numbers, or None for failures. It returns one number per completion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_rl.config.algorithm import OverlongConfig
from slurm_rl.config.registry import Entry
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.rewards.results import Failure, RewardResult
from slurm_rl.rewards.values import describe_error, read_number, show


def apply_group_reward(spec: str, groups: Sequence[Group]) -> list[Group]:
    """Return the groups with the function's rewards; a group on which it raises has failed rewards.

    Args:
        spec: `file.py:name`.
    """
    return [replace(group, results=_judge(spec, group)) for group in groups]


def _judge(spec: str, group: Group) -> list[RewardResult]:
    try:
        said = Entry(spec).load()(group.prompt, list(group.completions), [result.value for result in group.results])
        found = _read(said, len(group.completions))
    except Exception as error:
        found = Failure("exception", f"{spec}: {describe_error(error)}")
    if isinstance(found, Failure):
        return [
            replace(result, value=None, failure=found.cause, detail=found.detail, parts={})
            if result.failure is None
            else result
            for result in group.results
        ]
    # An earlier failure stays a failure: the completion is incomplete.
    pairs = zip(group.results, found, strict=True)
    return [result if result.failure is not None else replace(result, value=value) for result, value in pairs]


def _read(said: Any, count: int) -> list[float] | Failure:
    values = list(said)
    try:
        if len(values) == count:
            return [read_number(value) for value in values]
        seen = show(values)
    except ValueError as error:
        seen = str(error)
    return Failure("bad score", f"algorithm.group_reward makes one finite number of each of {count}; got {seen}")


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
