"""Rows in which completions stand behind the one prompt they share, and who sees whom in them; see math/sharing.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from slurm_rl.engine.rows import RowLayout, choose_rows
from slurm_rl.errors import ConfigError
from slurm_rl.math.sharing import unite


def build_shared_layout(lengths: Sequence[int], shared: Sequence[int]) -> RowLayout:
    """Lay sequences into rows, each prompt once.

    Args:
        lengths: of the sequences, prompts included.
        shared: see `count_shared`.
    """
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
    """[R, W, W] bool: what stands before it in its unit, of the prompt or of its own completion; and itself."""
    width = unit.shape[1]
    same_unit = unit.unsqueeze(2) == unit.unsqueeze(1)
    near = (member.unsqueeze(1) == -1) | (member.unsqueeze(2) == member.unsqueeze(1))
    before = torch.ones(width, width, dtype=torch.bool).tril()
    return (same_unit & near & before) | torch.eye(width, dtype=torch.bool)


def mask_for(mask: Tensor, attention: str, dtype: torch.dtype) -> Tensor:
    """The mask in the form that the attention takes."""
    if attention == "sdpa":
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def require_maskable(config: object) -> None:
    """Raise ConfigError where a model's attention takes no mask of ours."""
    attention = getattr(config, "_attn_implementation", "sdpa")
    if attention not in ("sdpa", "eager"):
        raise ConfigError(
            "policy.share_prompts needs an attention that takes any mask",
            seen=f"model.attention={attention}",
            action="set model.attention=sdpa, or policy.share_prompts=false",
        )
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise ConfigError(
            "policy.share_prompts needs a model whose every layer sees all that is before it",
            seen=", ".join(sorted(kinds)),
            action="set policy.share_prompts=false",
        )
