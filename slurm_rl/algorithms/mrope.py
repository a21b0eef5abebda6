"""Positions of text and image tokens in three axes, by which Qwen-VL rotates (M-RoPE).

    tokens    a  b  I  I  I  I  c         I: an image of 2 x 2 tokens that starts at position 2
    time      0  1  2  2  2  2  4
    height    0  1  2  2  3  3  4         text continues after the longer side
    width     0  1  2  3  2  3  4

Qwen2-VL, https://arxiv.org/abs/2409.12191, section 2.1. Still images have one time.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def build_rope_positions(length: int, starts: Sequence[int], grids: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Positions [3, length] of one sequence.

    Args:
        length: tokens of the sequence.
        starts: position of each image's first token, ascending.
        grids: (height, width) of each image in tokens.

    >>> build_rope_positions(4, [1], [(1, 2)]).tolist()
    [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]
    """
    positions = np.empty((3, length), dtype=np.int64)
    token, position = 0, 0
    for start, (height, width) in zip(starts, grids, strict=True):
        positions[:, token:start] = position + np.arange(start - token)
        position += start - token
        token = start + height * width
        rows, columns = np.divmod(np.arange(height * width), width)
        positions[:, start:token] = position + np.stack([np.zeros_like(rows), rows, columns])
        position += max(height, width)
    positions[:, token:] = position + np.arange(length - token)
    return positions
