"""Cut a packed row into several short ones, for attention kernels that pay for the square of a row's length.

SDPA computes the whole [T, T] square and masks most of it, so there the sequences are laid into R rows of W tokens:
same
numbers, R x W^2 work. Completions of a prompt may follow one copy of it; see algorithms/packing.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slurm_rl.algorithms.packing import pack_by_tokens, unite
from slurm_rl.errors import ConfigError

# Up to this share of padding every sequence gets a row of its own: then no mask is needed at all.
_MAX_PADDING = 0.15
# Rows of short sequences; wider ones gain nothing, narrower ones waste more at their ends.
_MIN_WIDTH = 64

_BOOLEAN_MASKS = ("sdpa", "varlen")


@dataclass(frozen=True)
class RowLayout:
    """Index of each token of a packed row in the flattened [R * W]."""

    num_rows: int
    width: int
    places: Tensor
    position_ids: Tensor
    """[R, W] int64; padding continues the count, so that it starts no sequence."""
    mask: Tensor | None = None
    """[R, 1, W, W] bool, the visible tokens; None: causal within the sequence, by positions."""


def build_row_layout(lengths: Sequence[int], *, packed: bool = True) -> RowLayout:
    """Lay sequences into rows, in order of the bins that first-fit makes, or one per row if not `packed`.

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
    longest = max(lengths)
    if sum(lengths) >= (1 - _MAX_PADDING) * longest * len(lengths):
        return [[i] for i in range(len(lengths))], longest
    width = max(longest, _MIN_WIDTH)
    return pack_by_tokens(lengths, width), width


def build_shared_layout(lengths: Sequence[int], shared: Sequence[int]) -> RowLayout:
    """Lay sequences into rows, each prompt once; `lengths` include prompts, `shared` is from `count_shared`."""
    units, tokens = unite(lengths, shared, budget=sum(lengths))
    rows, width = choose_rows(tokens)
    positions = np.zeros((len(rows), width), dtype=np.int64)
    unit_of = np.full((len(rows), width), -1)
    member_of = np.full((len(rows), width), -1)
    places: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)] * len(lengths)
    for row, inside in enumerate(rows):
        offset = 0
        for unit in inside:
            first, *others = units[unit]
            prompt = np.arange(offset, offset + (shared[others[0]] if others else 0))
            for member in units[unit]:
                common = 0 if member == first else len(prompt)
                own = np.arange(lengths[member] - common)
                at = offset + own
                positions[row, at], unit_of[row, at], member_of[row, at] = common + own, unit, member
                places[member] = row * width + np.concatenate([prompt[:common], at])
                offset += len(own)
            member_of[row, prompt] = -1  # all of the unit see it
    mask = _who_sees_whom(torch.from_numpy(unit_of), torch.from_numpy(member_of))
    return RowLayout(
        len(rows), width, torch.from_numpy(np.concatenate(places)), torch.from_numpy(positions), mask.unsqueeze(1)
    )


def _who_sees_whom(unit: Tensor, member: Tensor) -> Tensor:
    """Return [R, W, W] bool: earlier tokens of the unit's prompt or of the own completion, and itself."""
    width = unit.shape[1]
    same_unit = unit.unsqueeze(2) == unit.unsqueeze(1)
    near = (member.unsqueeze(1) == -1) | (member.unsqueeze(2) == member.unsqueeze(1))
    before = torch.ones(width, width, dtype=torch.bool).tril()
    return (same_unit & near & before) | torch.eye(width, dtype=torch.bool)


def mask_for(mask: Tensor, attention: str, dtype: torch.dtype) -> Tensor:
    if attention in _BOOLEAN_MASKS:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def require_maskable(config: object) -> None:
    attention = getattr(config, "_attn_implementation", "sdpa")
    if attention not in (*_BOOLEAN_MASKS, "eager"):
        raise ConfigError(
            "policy.prefix_sharing needs an attention that supports arbitrary masks",
            seen=f"model.attention={attention}",
            action="set model.attention=auto, or policy.prefix_sharing=false",
        )
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise ConfigError(
            "policy.prefix_sharing needs a model whose layers all attend to the whole prefix",
            seen=", ".join(sorted(kinds)),
            action="set policy.prefix_sharing=false",
        )
