"""A packed row cut into several short ones, for attention kernels that pay for the square of a row's length.

Flash attention walks each sequence of a packed row alone. SDPA computes the whole [T, T] square and masks
most of it, so there the same sequences are laid into R rows of W tokens: same numbers, R x W^2 work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slurm_rl.math.packing import pack_by_tokens

# Up to this share of padding every sequence gets a row of its own: then no mask is needed at all.
_MAX_PADDING = 0.15
# Rows of short sequences; wider ones gain nothing, narrower ones waste more at their ends.
_MIN_WIDTH = 64


@dataclass(frozen=True)
class RowLayout:
    """Where each token of a packed row stands in [R, W]."""

    num_rows: int
    width: int
    places: Tensor
    """[T] int64, place of each packed token in the flattened [R * W]."""
    position_ids: Tensor
    """[R, W] int64; padding goes on counting, so that it starts no sequence of its own."""
    mask: Tensor | None = None
    """[R, 1, W, W] bool, whom each token sees; None: what is before it in its sequence, which the positions tell."""


def build_row_layout(lengths: Sequence[int], *, packed: bool = True) -> RowLayout:
    """Lay sequences into rows, in order of the bins that first-fit makes.

    Args:
        packed: several may stand in one row.

    >>> layout = build_row_layout([3, 3])
    >>> (layout.num_rows, layout.width), layout.places.tolist()
    ((2, 3), [0, 1, 2, 3, 4, 5])
    """
    rows, width = choose_rows(lengths) if packed else ([[i] for i in range(len(lengths))], max(lengths))
    starts = np.zeros(len(lengths), dtype=np.int64)
    positions = np.empty((len(rows), width), dtype=np.int64)
    for row, members in enumerate(rows):
        offset = 0
        for index in members:
            starts[index] = row * width + offset
            # The last member's count runs on to the end of the row.
            positions[row, offset:] = np.arange(width - offset)
            offset += lengths[index]
    places = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    return RowLayout(len(rows), width, torch.from_numpy(places), torch.from_numpy(positions))


def choose_rows(lengths: Sequence[int]) -> tuple[list[list[int]], int]:
    """Which sequences stand in which row, and the width of all rows."""
    longest = max(lengths)
    if sum(lengths) >= (1 - _MAX_PADDING) * longest * len(lengths):
        return [[i] for i in range(len(lengths))], longest
    width = max(longest, _MIN_WIDTH)
    return pack_by_tokens(lengths, width), width
