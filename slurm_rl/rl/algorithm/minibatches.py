"""Which completions of a batch the loss has, and in which optimizer step. Pure.

groups -> completions that are kept -> minibatches of whole groups, weighted each -> those with a gradient
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.math.losses import aggregation_weights
from slurm_rl.math.sequences import TrainSequence
from slurm_rl.rl.algorithm.filters import keep_mask
from slurm_rl.rl.groups import Group


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
        sequences: one a completion, in order of groups, then completions.
        seed: of this step and epoch.
    """
    places = iter(range(len(sequences)))
    kept = keep_mask(groups, config.filters)
    by_group = [[i for i in (next(places) for _ in group.completions) if kept[i]] for group in groups]
    left = [indices for indices in by_group if indices]
    if num_minibatches > 1:
        random.Random(seed).shuffle(left)
    parts = [left[first::num_minibatches] for first in range(num_minibatches)]
    weighted = [weigh([sequences[i] for indices in part for i in indices], config) for part in parts]
    return [part for part in weighted if part]


def weigh(sequences: Sequence[TrainSequence], config: AlgorithmConfig) -> list[TrainSequence]:
    """The sequences of one optimizer step with their weights; those without a token have none and are left out."""
    lengths = [sequence.num_trained for sequence in sequences]
    weights = aggregation_weights(config.aggregation, lengths, config.aggregation_length)
    pairs = zip(sequences, weights, strict=True)
    return [replace(sequence, weight=float(weight)) for sequence, weight in pairs if weight > 0]


def drop_without_gradient(sequences: Sequence[TrainSequence], config: AlgorithmConfig) -> list[TrainSequence]:
    """The sequences that move the policy: where every advantage is 0 (a group of equal rewards) nothing does.

    Weights were made from the whole minibatch before, so the gradient is the same in every digit but rounding.
    With a KL term in the loss, or an entropy bonus, each sequence has a gradient.
    """
    if (config.kl.coefficient > 0 and config.kl.where == "loss") or config.entropy_bonus > 0:
        return list(sequences)
    return [s for s in sequences if s.advantages is not None and s.advantages.any()]
