"""AdamW's moments in host memory, copied to the device only for the update of their parameters.

    to the device    bring 0 | bring 1  | bring 2  |
    update                   | update 0 | update 1 | update 2
    to the host                         | park 0   | park 1   | park 2

Both directions of the bus overlap with the updates; at most two buckets are on the device.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from slurm_rl.models.shards import from_local, to_local

# Values of a rank's parameters that are updated together; their moments, on the device meanwhile, take half a GiB.
_BUCKET = 2**26


class CopyLanes:
    """Copy streams for the two directions, and their events."""

    def __init__(self, device: torch.device) -> None:
        self._incoming, self._outgoing = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._left: list[torch.cuda.Event] = []
        self._device = device

    def bring(self) -> AbstractContextManager[object]:
        """Queue copies to the device, after the bucket before the last has left."""
        if len(self._left) > 1:
            # The host waits: until then the allocator has no place to give again, and would take another.
            self._left[-2].synchronize()
        return torch.cuda.stream(self._incoming)

    def keep(self, tensor: Tensor) -> None:
        """A tensor that leaves: its place is not given away before. The update, which used it, is before that."""
        tensor.record_stream(self._outgoing)

    def wait_for_arrival(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._incoming)

    def park(self) -> AbstractContextManager[object]:
        """Queue copies to the host, after the update."""
        self._outgoing.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._outgoing)

    def note_departure(self) -> None:
        self._left.append(self._outgoing.record_event())

    def finish(self) -> None:
        self._outgoing.synchronize()
        self._left.clear()


class _OneLane(CopyLanes):
    """A CPU, where each copy is done when it returns."""

    def __init__(self) -> None:
        pass

    def bring(self) -> AbstractContextManager[object]:
        return nullcontext()

    park = bring

    def keep(self, tensor: Tensor) -> None:
        pass

    def wait_for_arrival(self) -> None:
        pass

    note_departure = finish = wait_for_arrival


class HostMoments:
    """Keep the moments in pinned host memory between steps, as plain tensors of this rank's shards.

    Pinned memory makes copies asynchronous; other memory blocks the host and needs a second copy.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, lanes: CopyLanes | None = None) -> None:
        self.optimizer, self.device = optimizer, device
        self.lanes = lanes or (CopyLanes(device) if device.type == "cuda" else _OneLane())
        self._host: dict[tuple[Tensor, str], Tensor] = {}

    def step(self) -> None:
        """One update of all parameters that have a gradient; the gradients go with it, bucket by bucket."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients = {p: p.grad for p in parameters}
        for parameter in parameters:
            parameter.grad = None
        buckets = list(_buckets(parameters))
        self._bring(buckets[:1])
        for place, bucket in enumerate(buckets):
            self.lanes.wait_for_arrival()
            for parameter in bucket:
                parameter.grad = gradients.pop(parameter)
            self.optimizer.step()  # skips whatever has no gradient
            for parameter in bucket:
                parameter.grad = None
            self._park(bucket)
            self._bring(buckets[place + 1 : place + 2])
        self.lanes.finish()

    def park(self) -> None:
        self._park(self.optimizer.state)
        self.lanes.finish()

    def _park(self, parameters: Iterable[Tensor]) -> None:
        state = self.optimizer.state
        with self.lanes.park():
            for parameter in parameters:
                for key, value in state[parameter].items():
                    if value.ndim:  # the step counter is there already
                        state[parameter][key] = self._to_host(parameter, key, to_local(value))
        self.lanes.note_departure()

    def clear(self) -> None:
        self._host.clear()

    def _to_host(self, parameter: Tensor, key: str, value: Tensor) -> Tensor:
        host = self._host.get((parameter, key))
        if host is None:
            host = torch.empty_like(value, device="cpu", pin_memory=self.device.type == "cuda")
            self._host[parameter, key] = host
        self.lanes.keep(value)
        return host.copy_(value, non_blocking=True)

    def _bring(self, buckets: list[list[Tensor]]) -> None:
        for bucket in buckets:
            with self.lanes.bring():
                for parameter in bucket:
                    self._bring_moments(parameter)

    def _bring_moments(self, parameter: Tensor) -> None:
        moments = self.optimizer.state.get(parameter, {})
        for key, value in moments.items():
            if not value.ndim:
                continue
            here = value.to(self.device, non_blocking=True)
            moments[key] = from_local(here, parameter) if isinstance(parameter, DTensor) else here


def _buckets(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        count = to_local(parameter).numel()
        if bucket and size + count > _BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += count
    if bucket:
        yield bucket
