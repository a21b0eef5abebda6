"""Filters of completions, and minibatches. Pure.

groups -> kept completions -> minibatches of whole groups, each weighted -> sequences with a gradient

A filter maps the groups of a step and `algorithm.filters` to one bool per completion. A completion is kept if all
filters keep it and its reward did not fail. To add a filter, write a function, its row in `FILTERS` and its field in
FilterConfig; a user's function is `algorithm.filters.function=file.py:name`. Filters must be deterministic.
"""

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
    """Return whether the known rewards of the group differ.

    DAPO (https://arxiv.org/abs/2503.14476, eq. 11) requires `0 < number of right answers < G`. Like verl's `acc` this
    compares only scores of correctness; without such a score, the reward before `algorithm.overlong`.
    """
    known = [result for result in group.results if result.value is not None]
    judges = [name for name in JUDGES if any(name in result.parts for result in known)]
    if judges:
        return len({tuple(result.parts.get(name) for name in judges) for result in known}) > 1
    return len({result.value if result.unshaped is None else result.unshaped for result in known}) > 1


def drop_zero_variance_groups(groups: Sequence[Group], config: FilterConfig) -> Mask:
    """Keep groups with signal."""
    return [[not config.drop_zero_variance_groups or has_signal(group)] * len(group.completions) for group in groups]


def truncated(groups: Sequence[Group], config: FilterConfig) -> Mask:
    """Keep completions that were not truncated."""
    return [[not (config.truncated and item.truncated) for item in group.completions] for group in groups]


def length(groups: Sequence[Group], config: FilterConfig) -> Mask:
    """Keep completions of `min_tokens` to `max_tokens`."""
    most = float("inf") if config.max_tokens is None else config.max_tokens
    return [[config.min_tokens <= item.num_sampled <= most for item in group.completions] for group in groups]


FILTERS: tuple[Filter, ...] = (drop_zero_variance_groups, truncated, length)


def keep_mask(groups: Sequence[Group], config: FilterConfig) -> list[bool]:
    """Return for each completion, in order of groups, whether it is kept."""
    masks = [mask(groups, config) for mask in FILTERS]
    if config.function is not None:
        masks.append(_ask_user(config.function, groups, config))
    known = [[result.value is not None for result in group.results] for group in groups]
    return [all(flags) for rows in zip(known, *masks, strict=True) for flags in zip(*rows, strict=True)]


def keep_sequences(groups: Sequence[Group], config: FilterConfig) -> list[bool]:
    """Return the same for each sequence; a completion with branches has several."""
    completions = [completion for group in groups for completion in group.completions]
    pairs = zip(completions, keep_mask(groups, config), strict=True)
    return [keep for completion, keep in pairs for _ in range(completion.num_sequences)]


def _ask_user(spec: str, groups: Sequence[Group], config: FilterConfig) -> Mask:
    found = [[bool(keep) for keep in row] for row in Entry(spec).load()(groups, config)]
    lengths, wanted = [len(row) for row in found], [len(group.completions) for group in groups]
    if lengths != wanted:
        raise ConfigError(
            f"algorithm.filters.function ({spec}) must return one bool per completion of each group",
            seen=f"{sum(lengths)} values for {len(found)} groups; expected {sum(wanted)} in {len(wanted)}",
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
    """Return the kept sequences of one epoch by optimizer step; each step is a weighted mean.

    Groups stay whole. Those with kept completions are distributed evenly, in an order that follows from `seed`: with 9
    of 32 groups, four steps have 3, 2, 2 and 2. One minibatch keeps the order of sampling. With fewer groups than
    minibatches there are fewer steps.

    Args:
        sequences: in order of groups, then completions, then branches.
        seed: seed of this step and epoch.
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
    """Return the sequences of one optimizer step with their weights, without empty sequences.

    Args:
        owners: index of the completion of each sequence, so that branches do not change its weight; None: one sequence
            per completion.
    """
    owners = range(len(sequences)) if owners is None else owners
    lengths: dict[int, int] = {}
    for sequence, owner in zip(sequences, owners, strict=True):
        lengths[owner] = lengths.get(owner, 0) + sequence.num_trained
    found = aggregation_weights(config.aggregation, [*lengths.values()], config.aggregation_length)
    weights = dict(zip(lengths, found.tolist(), strict=True))
    pairs = zip(sequences, owners, strict=True)
    return [replace(sequence, weight=weights[owner]) for sequence, owner in pairs if weights[owner] > 0]


def drop_without_gradient(sequences: Sequence[TrainSequence], config: AlgorithmConfig) -> list[TrainSequence]:
    """Return the sequences that have a gradient: not all advantages are 0, or the loss has a KL or entropy term.

    Weights come from the whole minibatch, so the gradient does not change.
    """
    if (config.kl.coef > 0 and config.kl.apply_to == "loss") or config.entropy_coef > 0:
        return list(sequences)
    return [s for s in sequences if s.advantages is not None and s.advantages.any()]
