"""Gather whole tensors from the ranks' shards: many per collective, cast before the transfer.

    parts of ranks 0, 1, 2   a0 b0 | a1 b1 | a2 b2        one bucket, all-gathered at once
    tensors                  a0 a1 a2 -> a, b0 b1 b2 -> b  one after the other

A rank holds at most one bucket and the current tensor on its device in addition to its shards.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from slurm_rl.models.distributed import get_device, get_rank, get_world_size
from slurm_rl.models.lora import is_adapter

BUCKET_BYTES = 2**28
"""Bytes of whole tensors per bucket; a larger tensor is its own bucket."""
_ALIGNED = 16
"""Alignment of each part in bytes, so that it can be viewed as any dtype."""


@dataclass(frozen=True)
class Part:
    """This rank's part of a tensor: end to end, in the order of ranks, the parts are the tensor and some padding."""

    values: Tensor
    """Flat; at most `ceil` numbers, fewer or none where the tensor ends."""
    shape: Sequence[int]
    """Shape of the whole tensor."""
    ceil: int
    """Numbers of every rank's part, with padding."""


def gather_state(
    state: Iterable[tuple[str, Tensor | Part]], dtype: torch.dtype, place: torch.device | None
) -> Iterator[tuple[str, Tensor]]:
    """See `Backend.full_state`; `state` has the same order on all ranks."""
    bucket: list[_Entry] = []
    size = 0
    for name, held in state:
        own = held.values.dtype if isinstance(held, Part) else held.dtype
        entry = _Entry(name, held, own if is_adapter(name) else dtype)
        if bucket and size + get_world_size() * entry.num_bytes > BUCKET_BYTES:
            yield from _empty(bucket, place)
            bucket, size = [], 0
        bucket.append(entry)
        size += get_world_size() * entry.num_bytes
    yield from _empty(bucket, place)


@dataclass(frozen=True)
class _Entry:
    name: str
    held: Tensor | Part
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """In the bucket, of each rank; a tensor that is whole already takes none."""
        needed = self.held.ceil * self.dtype.itemsize if isinstance(self.held, Part) else 0
        return -(-needed // _ALIGNED) * _ALIGNED


def _empty(bucket: list[_Entry], place: torch.device | None) -> Iterator[tuple[str, Tensor]]:
    gathered = _gather(bucket)
    if get_rank() != 0 and place is None:
        return
    made_on = torch.cuda.current_stream() if gathered.is_cuda else None
    offset, alone = 0, sum(entry.num_bytes > 0 for entry in bucket) == 1
    for entry in bucket:
        if isinstance(entry.held, Tensor):
            yield entry.name, entry.held.detach().to(device=place or "cpu", dtype=entry.dtype, copy=True)
            continue
        if made_on is not None and torch.cuda.current_stream() != made_on:
            # Consumers may use several streams in turn, as vLLM does.
            torch.cuda.current_stream().wait_stream(made_on)
            gathered.record_stream(torch.cuda.current_stream())
        size = entry.held.ceil * entry.dtype.itemsize
        rows = gathered[:, offset : offset + size].view(entry.dtype)
        whole = rows.flatten()[: math.prod(entry.held.shape)].view(*entry.held.shape)
        offset += entry.num_bytes
        # A copy of its own, or a small tensor that is kept would keep the bucket.
        shared = not alone and get_world_size() == 1
        yield entry.name, whole.to(place or "cpu", copy=shared)


def _gather(bucket: list[_Entry]) -> Tensor:
    """[num_ranks, num_bytes] of all parts, on this rank's device."""
    device, num_bytes = get_device(), sum(entry.num_bytes for entry in bucket)
    gathered = torch.empty(get_world_size(), num_bytes, dtype=torch.uint8, device=device)
    mine, offset = gathered[get_rank()], 0
    for entry in bucket:
        if isinstance(entry.held, Part):
            values = entry.held.values
            # From the host they come in the type that they travel in, too.
            values = values.to(entry.dtype) if values.device != device else values
            size = values.numel() * entry.dtype.itemsize
            mine[offset : offset + size].view(entry.dtype).copy_(values)
            offset += entry.num_bytes
    if num_bytes and get_world_size() > 1:
        distributed.all_gather_single(gathered.view(-1), mine)
    return gathered
