"""The form in which a model's weights travel through Ray's object store, and what both sides say of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slurm_rl.rollout.weights.checksum import WeightChecksum


@dataclass(frozen=True)
class WeightRecord:
    """One tensor. Raw bytes with a type name, because numpy has no bfloat16; Ray passes them uncopied."""

    name: str
    dtype: str
    """torch's name without `torch.`, such as `bfloat16`."""
    shape: tuple[int, ...]
    data: Any
    """[num_bytes] uint8 array."""

    def to_tensor(self) -> torch.Tensor:
        # Ray hands out read-only memory; torch wants to be able to write.
        return torch.from_numpy(np.array(self.data)).view(getattr(torch, self.dtype)).view(self.shape)


@dataclass(frozen=True)
class SentWeights:
    """What the policy says of the weights it sends."""

    checksum: str
    probe: list[float]
    """Logprob of each token of the probe after the first."""


@dataclass(frozen=True)
class HeldWeights:
    """What an engine says of the weights it holds after a sync."""

    version: int
    checksums: list[str]
    """Of the bytes received, one a tensor-parallel rank."""
    probe: list[float]


def _pack(name: str, tensor: torch.Tensor) -> WeightRecord:
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return WeightRecord(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat)


def pack_weights(state: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[WeightRecord], str]:
    """Records on the host of tensors on any device, and their checksum, computed where they are."""
    checksum = WeightChecksum()
    return [_pack(name, tensor) for name, tensor in checksum.passing(state)], checksum.hexdigest()
