"""Which completions of a batch the loss has, and in which optimizer step. Pure.

groups -> completions that the filters keep -> minibatches of whole groups, weighted each -> those with a gradient

A filter maps the groups of a step and `algorithm.filters` to one bool a completion of each group: whether it is kept.
What any of them leaves out is left out, and so is a completion whose reward failed. To add one, write a function, its
row in `FILTERS` and its field in FilterConfig; a user's own is `algorithm.filters.function=file.py:name`. It is asked
several times of the same groups and must say the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from slurm_rl.algorithms.losses import aggregation_weights
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig, FilterConfig
from slurm_rl.config.registry import Entry
from slurm_rl.data.groups import Group
from slurm_rl.errors import ConfigError
from slurm_rl.rewards.verifiers import JUDGES

Mask = Sequence[Sequence[bool]]
Filter = Callable[[Sequence[Group], FilterConfig], Mask]


def has_signal(group: Group) -> bool:
    """The completions of the group are not all equally right; failed rewards have no say.

    DAPO (https://arxiv.org/abs/2503.14476, eq. 11) asks for `0 < number of right ones < G`, and verl filters by `acc`:
    by the scores that judge the answer, whatever its form or length earned. Without such a score it is the reward
    before `algorithm.overlong`.
    """
    known = [result for result in group.results if result.value is not None]
    judges = [name for name in JUDGES if any(name in result.parts for result in known)]
    if judges:
        return len({tuple(result.parts.get(name) for name in judges) for result in known}) > 1
    return len({result.value if result.unshaped is None else result.unshaped for result in known}) > 1


def drop_zero_variance_groups(groups: Sequence[Group], config: FilterConfig) -> Mask:
    """`drop_zero_variance_groups`: groups with signal."""
    return [[not config.drop_zero_variance_groups or has_signal(group)] * len(group.completions) for group in groups]


def truncated(groups: Sequence[Group], config: FilterConfig) -> Mask:
    """`truncated`: completions that ended by themselves."""
    return [[not (config.truncated and item.truncated) for item in group.completions] for group in groups]


def length(groups: Sequence[Group], config: FilterConfig) -> Mask:
    """`min_tokens` and `max_tokens`."""
    most = float("inf") if config.max_tokens is None else config.max_tokens
    return [[config.min_tokens <= item.num_sampled <= most for item in group.completions] for group in groups]


FILTERS: tuple[Filter, ...] = (drop_zero_variance_groups, truncated, length)


def keep_mask(groups: Sequence[Group], config: FilterConfig) -> list[bool]:
    """For each completion, in order of groups, whether the loss has it; never one whose reward failed."""
    masks = [mask(groups, config) for mask in FILTERS]
    if config.function is not None:
        masks.append(_ask_user(config.function, groups, config))
    known = [[result.value is not None for result in group.results] for group in groups]
    return [all(flags) for rows in zip(known, *masks, strict=True) for flags in zip(*rows, strict=True)]


def keep_sequences(groups: Sequence[Group], config: FilterConfig) -> list[bool]:
    """The same for each sequence: a completion with branches has several."""
    completions = [completion for group in groups for completion in group.completions]
    pairs = zip(completions, keep_mask(groups, config), strict=True)
    return [keep for completion, keep in pairs for _ in range(completion.num_sequences)]


def _ask_user(spec: str, groups: Sequence[Group], config: FilterConfig) -> Mask:
    found = [[bool(keep) for keep in row] for row in Entry(spec).load()(groups, config)]
    lengths, wanted = [len(row) for row in found], [len(group.completions) for group in groups]
    if lengths != wanted:
        raise ConfigError(
            f"algorithm.filters.function ({spec}) says of each completion of each group whether it is kept",
            seen=f"{sum(lengths)} answers for {len(found)} groups; there are {sum(wanted)} in {len(wanted)}",
            action="return [[... for completion in group.completions] for group in groups]",
        )
    return found


def split_minibatches(
    sequences: Sequence[TrainSequence],
    groups: Sequence[Group],
    config: AlgorithmConfig,
    num_minibatches: int,
    seed: int,
) -> list[list[TrainSequence]]:
    """The kept sequences of one epoch by optimizer step, weighted so that each step is a mean of its own.

    Groups stay whole, and those of which anything is kept are dealt out as evenly as can be, in an order of `seed`:
    with 9 of 32 groups, four steps have 3, 2, 2 and 2. One minibatch keeps the order of sampling. Where fewer groups
    are left than minibatches were asked for, there are fewer steps.

    Args:
        sequences: in order of groups, then completions, then branches.
        seed: of this step and epoch.
    """
    places, kept = iter(range(len(sequences))), keep_sequences(groups, config.filters)
    by_group = [
        [i for i in (next(places) for item in group.completions for _ in range(item.num_sequences)) if kept[i]]
        for group in groups
    ]
    completions = [completion for group in groups for completion in group.completions]
    owners = [owner for owner, completion in enumerate(completions) for _ in range(completion.num_sequences)]
    left = [indices for indices in by_group if indices]
    if num_minibatches > 1:
        random.Random(seed).shuffle(left)
    parts = [left[first::num_minibatches] for first in range(num_minibatches)]
    flat = [[i for indices in part for i in indices] for part in parts]
    weighted = [weigh([sequences[i] for i in part], config, [owners[i] for i in part]) for part in flat]
    return [part for part in weighted if part]


def weigh(
    sequences: Sequence[TrainSequence], config: AlgorithmConfig, owners: Sequence[int] | None = None
) -> list[TrainSequence]:
    """The sequences of one optimizer step with their weights; those without a token have none and are left out.

    Args:
        owners: the completion that each sequence is of: one that is split into branches weighs what it does whole.
            None: each of one of its own.
    """
    whose = range(len(sequences)) if owners is None else owners
    lengths: dict[int, int] = {}
    for sequence, owner in zip(sequences, whose, strict=True):
        lengths[owner] = lengths.get(owner, 0) + sequence.num_trained
    found = aggregation_weights(config.aggregation, [*lengths.values()], config.aggregation_length)
    weights = dict(zip(lengths, found.tolist(), strict=True))
    pairs = zip(sequences, whose, strict=True)
    return [replace(sequence, weight=weights[owner]) for sequence, owner in pairs if weights[owner] > 0]


def drop_without_gradient(sequences: Sequence[TrainSequence], config: AlgorithmConfig) -> list[TrainSequence]:
    """The sequences that move the policy: where every advantage is 0 (a group of equal rewards) nothing does.

    Weights were made from the whole minibatch before, so the gradient is the same in every digit but rounding.
    With a KL term in the loss, or an entropy bonus, each sequence has a gradient.
    """
    if (config.kl.coef > 0 and config.kl.apply_to == "loss") or config.entropy_coef > 0:
        return list(sequences)
    return [s for s in sequences if s.advantages is not None and s.advantages.any()]
