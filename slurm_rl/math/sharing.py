"""Completions of one prompt that are trained on together read it once.

    prompt p1 p2 p3, completions a1 a2 and b1      one row   p1 p2 p3 a1 a2 b1
                                                   position   0  1  2  3  4  3

A token sees the prompt and its own completion up to itself, so every number is what it would be in a sequence of its
own, and gradients into the prompt add up as they would over its copies. With G completions of L tokens after a
prompt of P that is P + G L tokens in place of G (P + L). Known as Prefix Grouper (https://arxiv.org/abs/2506.05433).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from slurm_rl.math.sequences import TrainSequence


def count_shared(sequences: Sequence[TrainSequence]) -> list[int]:
    """For each sequence how many tokens of its prompt are those of the sequence before it: all, or 0."""
    return [0] + [
        later.trained_from if _same_prompt(earlier, later) else 0 for earlier, later in itertools.pairwise(sequences)
    ]


def _same_prompt(one: TrainSequence, other: TrainSequence) -> bool:
    length = one.trained_from
    return length == other.trained_from and np.array_equal(one.token_ids[:length], other.token_ids[:length])


def unite(lengths: Sequence[int], shared: Sequence[int], budget: int) -> tuple[list[list[int]], list[int]]:
    """Neighbours that share a prompt, together as far as they fit the budget: their indices, and tokens.

    >>> unite([5, 5, 5, 4], [0, 3, 3, 0], budget=8)
    ([[0, 1], [2], [3]], [7, 5, 4])
    """
    units: list[list[int]] = []
    tokens: list[int] = []
    for index, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if common and units and tokens[-1] + length - common <= budget:
            units[-1].append(index)
            tokens[-1] += length - common
        else:
            units.append([index])
            tokens.append(length)
    return units, tokens
