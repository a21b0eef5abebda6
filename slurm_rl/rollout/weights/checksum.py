"""A checksum of weights that runs on their device, on a GPU at the speed of its memory.

It detects accidents, such as truncated, swapped or overwritten tensors. It is not a cryptographic hash; SHA-256 would
take 11 s for 7B on the policy and on every engine.

32-bit words are multiplied by odd 64-bit factors, one per position in a row, and summed modulo 2^64 (multilinear
hashing, https://arxiv.org/abs/1202.4961); the row sums are hashed again until one is left. Integer sums do not depend
on order, so CPUs and GPUs agree with any block size. One changed word always changes its row's sum; two changes cancel
with a probability of about 2^-32. torch.hash_tensor reduces by XOR, which would miss permutations and flipped signs.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ROW_WORDS = 2**12
_ROW_BYTES = 4 * _ROW_WORDS
_SMALL_BYTES = 2**20
"""Largest tensor that numpy sums on a CPU, where torch's call overhead dominates."""
_BLOCK_ROWS = {"cpu": 2**4}
_GPU_BLOCK_ROWS = 2**11
"""Rows per block. The products take twice their bytes: 512 kB of a CPU's cache, 64 MB of a GPU."""


class WeightChecksum:
    """Checksum over names, dtypes, shapes and bytes of tensors in any order."""

    def __init__(self) -> None:
        self._headers: list[str] = []
        self._values: list[Tensor] = []
        self.num_bytes = 0
        """Size of the tensors so far."""

    def add(self, name: str, tensor: Tensor) -> None:
        self._headers.append(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}")
        self._values.append(hash_tensor(tensor))
        self.num_bytes += tensor.nbytes

    def passing(self, state: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the same tensors and add each of them."""
        for name, tensor in state:
            self.add(name, tensor)
            yield name, tensor

    def hexdigest(self) -> str:
        # One transfer: synchronize with a GPU once, not per tensor.
        values = torch.stack(self._values).tolist() if self._values else []
        lines = (f"{header}:{value}" for header, value in zip(self._headers, values, strict=True))
        total = sum(int.from_bytes(blake2b(each.encode(), digest_size=8).digest(), "little") for each in lines)
        return f"{total % 2**64:016x}"


def hash_tensor(tensor: Tensor) -> Tensor:
    """Return the hash of a tensor's bytes, [] int64 on its device. Copies a strided tensor."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if data.storage_offset() % 4:
        data = data.clone()  # words must be aligned
    if data.device.type == "cpu" and data.numel() <= _SMALL_BYTES:
        return torch.tensor(_sum_small(data.numpy()))
    sums = _sum_rows(data)
    while len(sums) > 1:
        sums = _sum_rows(sums.view(torch.uint8))
    return sums[0]


def _sum_small(data: NDArray[np.uint8]) -> int:
    """Return the same as repeated `_sum_rows`, with numpy."""
    if rest := len(data) % 4:
        data = np.pad(data, (0, 4 - rest))
    words, factors = data.view(np.int32), _factors(torch.device("cpu")).numpy()
    if len(words) <= _ROW_WORDS:
        return int(np.einsum("i,i->", words, factors[: len(words)]))
    whole = len(words) // _ROW_WORDS * _ROW_WORDS
    sums = np.einsum("ij,j->i", words[:whole].reshape(-1, _ROW_WORDS), factors)
    if last := len(words) - whole:
        sums = np.append(sums, np.einsum("i,i->", words[whole:], factors[:last]))
    return _sum_small(sums.view(np.uint8))


def _sum_rows(data: Tensor) -> Tensor:
    """Return [num_rows] int64, at least one row; the last row is padded with zeros."""
    num_whole, rest = divmod(data.numel(), _ROW_BYTES)
    sums = data.new_empty(max(1, num_whole + (rest > 0)), dtype=torch.int64)
    rows = data[: num_whole * _ROW_BYTES].view(torch.int32).view(num_whole, _ROW_WORDS)
    _multiply_and_add(rows, sums[:num_whole])
    if num_whole < len(sums):
        last = data.new_zeros(_ROW_BYTES)
        last[:rest] = data[num_whole * _ROW_BYTES :]
        _multiply_and_add(last.view(1, _ROW_BYTES).view(torch.int32), sums[num_whole:])
    return sums


def _multiply_and_add(rows: Tensor, sums: Tensor) -> None:
    factors, step = _factors(rows.device), _BLOCK_ROWS.get(rows.device.type, _GPU_BLOCK_ROWS)
    products = rows.new_empty(min(step, len(rows)), _ROW_WORDS, dtype=torch.int64)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        torch.mul(block, factors, out=products[: len(block)])
        torch.sum(products[: len(block)], 1, out=sums[start : start + step])


@cache
def _factors(device: torch.device) -> Tensor:
    """Return [_ROW_WORDS] odd pseudo-random numbers (splitmix64), the same in every process."""
    mask, factors = 2**64 - 1, []
    for place in range(1, _ROW_WORDS + 1):
        value = place * 0x9E3779B97F4A7C15 & mask
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
        value = (value ^ value >> 31) | 1
        factors.append(value - 2**64 if value >= 2**63 else value)
    return torch.tensor(factors, dtype=torch.int64, device=device)
