"""Weights in Ray's object store, and the reports of both sides of a sync."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slurm_rl.rollout.weights.checksum import WeightChecksum


@dataclass(frozen=True)
class WeightRecord:
    """One tensor as raw bytes, because numpy has no bfloat16; Ray passes them without a copy."""

    name: str
    dtype: str
    """Name of the torch dtype, such as `bfloat16`."""
    shape: tuple[int, ...]
    data: Any
    """[num_bytes] uint8 array."""

    def to_tensor(self) -> torch.Tensor:
        # Ray's memory is read-only; torch needs writable memory.
        return torch.from_numpy(np.array(self.data)).view(getattr(torch, self.dtype)).view(self.shape)


@dataclass(frozen=True)
class SentWeights:
    """The policy's report of the weights that it sent."""

    checksum: str
    probe: list[float]
    """Logprob of each probe token after the first."""
    num_bytes: int = 0
    """Size of the tensors sent to each engine."""


@dataclass(frozen=True)
class HeldWeights:
    """An engine's report of the weights that it holds after a sync."""

    version: int
    checksums: list[str]
    """Checksum of the received bytes, one per tensor-parallel rank."""
    probe: list[float]


def _pack(name: str, tensor: torch.Tensor) -> WeightRecord:
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return WeightRecord(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat)


def pack_weights(state: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[WeightRecord], str]:
    """Return host copies of tensors on any device, and their checksum, which is computed on the device."""
    checksum = WeightChecksum()
    return [_pack(name, tensor) for name, tensor in checksum.passing(state)], checksum.hexdigest()
