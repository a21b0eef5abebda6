"""The form in which a model's weights travel from the policy to the engines, and its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


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


def pack_weights(state: Iterable[tuple[str, torch.Tensor]]) -> list[WeightRecord]:
    """Records of a full state dict, sorted by name so that the checksum has one value."""
    return [_pack(name, tensor) for name, tensor in sorted(state, key=lambda item: item[0])]


def checksum(records: Sequence[WeightRecord]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(f"{record.name}:{record.dtype}:{record.shape};".encode())
        digest.update(record.data)
    return digest.hexdigest()
