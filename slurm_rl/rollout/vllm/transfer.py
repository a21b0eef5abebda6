"""Direct weight transfer from the policy's memory to the engines, through vLLM's weight-transfer interface.

    backend  transport                                    for
    nccl     broadcast in packed buckets (RCCL on AMD)    engines with their own GPUs
    ipc      GPU memory handles, in packed buckets        engines on the policy's GPUs
    gloo     broadcast (gloo_transfer.py)                 CPU

nccl and ipc are vLLM's own; the tests run them on fake GPUs (tests/fake_gpu).

Extra GPU memory on the policy: the two buckets of gather.py, plus four for nccl (two in flight, one being packed and
its tensors), or one or the largest tensor for ipc. On an engine: four buckets or one, and the layer being loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slurm_rl.models.distributed import get_rank
from slurm_rl.models.gather import BUCKET_BYTES
from slurm_rl.rollout.weights.checksum import WeightChecksum

if TYPE_CHECKING:
    from slurm_rl.models.policy import PolicyEngine


class EngineClient:
    """vLLM's client interface over all engines.

    Args:
        engines: Ray handles of rollout engines.
        sizes: tensor-parallel ranks of each engine. Rank 0 of the transfer group is the policy; theirs follow in order.
        timeout_s: timeout of one call.
    """

    def __init__(self, engines: Sequence[Any], sizes: Sequence[int], timeout_s: float) -> None:
        self.engines, self.timeout_s = list(engines), timeout_s
        self.offsets = [1 + sum(sizes[:index]) for index in range(len(sizes))]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        infos = [
            {**init_info, "rank_offset": offset} if "rank_offset" in init_info else init_info for offset in self.offsets
        ]
        self._call("init_weight_transfer_engine", [{"init_info": info} for info in infos])

    def start_weight_update(self) -> None:
        self._call("start_weight_update", [{}] * len(self.engines))

    def update_weights(self, update_info: Any) -> None:
        self._call("update_weights", [{"update_info": update_info}] * len(self.engines))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update", [{}] * len(self.engines))

    def _call(self, method: str, arguments: Sequence[dict[str, Any]]) -> None:
        import ray

        calls = [engine.call_workers.remote(method, each) for engine, each in zip(self.engines, arguments, strict=True)]
        ray.get(calls, timeout=self.timeout_s)


def open_sender(
    backend: str, rank: int, policy: PolicyEngine, client: EngineClient, world_size: int, address: tuple[str, int]
) -> Any:
    """Return vLLM's trainer side, ready to `send_weights`. Collective over all policy ranks.

    Args:
        world_size: size of the transfer group: policy rank 0 and every engine rank.
        address: rendezvous of that group.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    source = _build_source(policy)
    info = _init_info(backend, rank, world_size, address, largest_bytes(source.metadata()))
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def largest_bytes(metadata: Sequence[Any]) -> int:
    """Return the size of the largest tensor; the embedding of a 7B model has over 1 GiB."""
    return max(math.prod(meta.shape) * meta.dtype.itemsize for meta in metadata)


def _init_info(backend: str, rank: int, world_size: int, address: tuple[str, int], largest: int) -> Any:
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        # A tensor must fit into the buffer.
        size = max(BUCKET_BYTES, largest)
        return IPCTrainerInitInfo(packed=True, packed_buffer_size_bytes=size, rank=rank)
    if backend == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        # Two buffers are in flight while a third is packed; vLLM's default of 1 GiB each is too much.
        return NCCLTrainerInitInfo(*address, world_size, packed_buffer_size_bytes=BUCKET_BYTES, rank=rank)
    from slurm_rl.rollout.vllm.gloo_transfer import GlooTrainerInitInfo, register

    register()
    return GlooTrainerInitInfo(*address, world_size, rank=rank)


def _build_source(policy: PolicyEngine) -> Any:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class PolicyWeights(WeightSource):
        """The whole state dict with tied names and merged adapters, gathered on every rank's device."""

        checksum = WeightChecksum()
        """Checksum of the last pass on the sending rank; read it after vLLM's streams are synchronized."""

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, empty.dtype, tuple(empty.shape)) for name, empty in policy.empty_state_to_send()]

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            state = policy.state_to_send(policy.device)
            if get_rank() != 0:
                yield from state
                return
            self.checksum = WeightChecksum()
            yield from self.checksum.passing(state)

    return PolicyWeights()
