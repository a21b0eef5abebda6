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

from slurm_rl.models.distributed import get_device, get_rank
from slurm_rl.models.lora import is_adapter

BUCKET_BYTES = 2**28
"""Bytes of whole tensors per bucket; a larger tensor is its own bucket."""
_ALIGNED = 16
"""Alignment of each part in bytes, so that it can be viewed as any dtype."""


@dataclass(frozen=True)
class Part:
    """This rank's part of a tensor: along `dim`, in the order of ranks, the parts are the tensor and some padding."""

    values: Tensor
    """Flat; at most `ceil` numbers, fewer or none where the tensor ends."""
    shape: Sequence[int]
    """Shape of the whole tensor."""
    ceil: int
    """Numbers of every rank's part, with padding."""
    dim: int = 0
    """Parts along another dimension than the first have no padding."""

    def join(self, parts: Tensor) -> Tensor:
        """Return the whole tensor from the values of all ranks, [num_parts, ceil]."""
        if self.dim == 0:
            return parts.flatten()[: math.prod(self.shape)].view(*self.shape)
        shape = list(self.shape)
        shape[self.dim] //= len(parts)
        return parts.reshape(len(parts), *shape).movedim(0, self.dim).reshape(*self.shape)


def gather_state(
    state: Iterable[tuple[str, Tensor | Part]],
    dtype: torch.dtype,
    place: torch.device | None,
    group: distributed.ProcessGroup | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """See `Backend.full_state`; `state` has the same order on all ranks.

    Args:
        group: ranks that hold the parts; None: all.
    """
    bucket: list[_Entry] = []
    size = 0
    num_parts = distributed.get_world_size(group) if distributed.is_initialized() else 1
    for name, held in state:
        own = held.values.dtype if isinstance(held, Part) else held.dtype
        entry = _Entry(name, held, own if is_adapter(name) else dtype)
        if bucket and size + num_parts * entry.num_bytes > BUCKET_BYTES:
            yield from _empty(bucket, place, num_parts, group)
            bucket, size = [], 0
        bucket.append(entry)
        size += num_parts * entry.num_bytes
    yield from _empty(bucket, place, num_parts, group)


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


def _empty(
    bucket: list[_Entry], place: torch.device | None, num_parts: int, group: distributed.ProcessGroup | None
) -> Iterator[tuple[str, Tensor]]:
    gathered = _gather(bucket, num_parts, group)
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
        whole = entry.held.join(gathered[:, offset : offset + size].view(entry.dtype))
        offset += entry.num_bytes
        # A copy of its own, or a small tensor that is kept would keep the bucket.
        shared = not alone and num_parts == 1
        yield entry.name, whole.to(place or "cpu", copy=shared)


def _gather(bucket: list[_Entry], num_parts: int, group: distributed.ProcessGroup | None) -> Tensor:
    """[num_parts, num_bytes] of all parts, on this rank's device."""
    device, num_bytes = get_device(), sum(entry.num_bytes for entry in bucket)
    gathered = torch.empty(num_parts, num_bytes, dtype=torch.uint8, device=device)
    mine, offset = gathered[get_rank() % num_parts], 0
    for entry in bucket:
        if isinstance(entry.held, Part):
            values = entry.held.values
            # From the host they come in the type that they travel in, too.
            values = values.to(entry.dtype) if values.device != device else values
            size = values.numel() * entry.dtype.itemsize
            mine[offset : offset + size].view(entry.dtype).copy_(values)
            offset += entry.num_bytes
    if num_bytes and num_parts > 1:
        distributed.all_gather_single(gathered.view(-1), mine, group=group)
    return gathered
