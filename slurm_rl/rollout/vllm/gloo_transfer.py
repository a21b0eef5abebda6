"""vLLM's weight-transfer interface over gloo, the CPU counterpart of its nccl backend.

    policy rank 0  --broadcast, tensor by tensor-->  every tensor-parallel rank of every engine

Import this module only in processes that have vLLM.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

BACKEND = "gloo"


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """Rendezvous of the group; an engine's ranks start at `rank_offset`."""

    master_address: str
    master_port: int
    world_size: int
    rank_offset: int = 1


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):
    """Rendezvous for the policy; its rank 0 is the group's rank 0."""

    backend: ClassVar[str] = BACKEND
    master_address: str
    master_port: int
    world_size: int


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """Metadata of the tensors, in the order of the broadcasts."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


def _join(info: GlooInitInfo | GlooTrainerInitInfo, rank: int) -> Any:
    return stateless_init_torch_distributed_process_group(
        info.master_address, info.master_port, rank, info.world_size, BACKEND
    )


def _broadcast(group: Any, tensor: Tensor) -> None:
    # gloo does not support every dtype, so broadcast bytes.
    group.broadcast(tensor.view(-1).view(torch.uint8), 0).wait()


class GlooEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """Receiver in each vLLM worker."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    group: Any = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        self.group = _join(init_info, init_info.rank_offset + self.parallel_config.rank)

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The inherited method synchronizes an accelerator.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        def receive() -> Any:
            for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
                tensor = torch.empty(shape, dtype=getattr(torch, dtype))
                _broadcast(self.group, tensor)
                yield name, tensor

        self.model.load_weights(receive())

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self.group = None


class GlooTrainerEngine(TrainerWeightTransferEngine[GlooTrainerInitInfo]):
    """Sender in each policy worker; rank 0 broadcasts, the others take part in gathering."""

    init_info_cls = GlooTrainerInitInfo
    group: Any = None

    @classmethod
    def trainer_init(cls, init_info: GlooTrainerInitInfo, *, client: Any, source: Any = None) -> GlooTrainerEngine:
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            place = GlooInitInfo(init_info.master_address, init_info.master_port, init_info.world_size)
            with ThreadPoolExecutor(1) as thread:  # both sides must join concurrently
                joined = thread.submit(client.init_weight_transfer_engine, asdict(place))
                engine.group = _join(init_info, 0)
                joined.result()
        return engine

    def send_weights(self) -> None:
        assert self.source is not None
        meta = self.source.metadata()
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        info = GlooUpdateInfo(
            [m.name for m in meta], [str(m.dtype).removeprefix("torch.") for m in meta], [list(m.shape) for m in meta]
        )
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as thread:
            received = thread.submit(self.client.update_weights, asdict(info))
            for _, tensor in self.source:
                _broadcast(self.group, tensor.contiguous())
            received.result()
        self.client.finish_weight_update()


def register() -> None:
    """Register the backend with vLLM in this process; idempotent."""
    for factory, engine in (
        (WeightTransferEngineFactory, GlooEngine),
        (WeightTransferTrainerFactory, GlooTrainerEngine),
    ):
        if BACKEND not in factory._registry:
            factory.register_engine(BACKEND, engine)
