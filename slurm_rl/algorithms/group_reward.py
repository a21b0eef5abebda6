"""Rewards of a whole group, by a user's function that compares the completions of one prompt.

    def score(prompt, completions, rewards):          algorithm.group_reward=file.py:score
        shortest = min(len(one.token_ids) for one in completions)
        return [reward if len(one.token_ids) == shortest else 0.0 for one, reward in zip(completions, rewards)]

The trainer calls it with the prompt (`EncodedPrompt`), its completions or episodes (`Trajectory`, with `turns`) and
their rewards: numbers, or None for failures. It returns one number per completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slurm_rl.config.registry import Entry
from slurm_rl.data.groups import Group
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
