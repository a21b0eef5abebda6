"""Both sides of the gloo transfer in one process: every tensor arrives unchanged on every engine rank."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm")

from slurm_rl.plan.layout import CPU_HEAD_SIZES  # noqa: E402 - as the next
from slurm_rl.rollout.vllm.gloo_transfer import (  # noqa: E402 - needs vLLM
    GlooEngine,
    GlooTrainerEngine,
    GlooTrainerInitInfo,
)
from slurm_rl.rollout.vllm.transfer import _build_source  # noqa: E402 - as the next
from slurm_rl.rollout.vllm.worker_extension import RolloutWorkerExtension  # noqa: E402 - imports vLLM
from slurm_rl.rollout.weights.weight_record import pack_weights  # noqa: E402 - as the others

STATE = {
    "embed.weight": torch.arange(12.0).view(3, 4),
    "half.weight": torch.randn(5, 2).to(torch.bfloat16),
    "turned.weight": torch.arange(6.0).view(2, 3).t(),
    "count": torch.tensor(7),
}


class Source:
    def metadata(self) -> list[Any]:
        return [SimpleNamespace(name=n, dtype=t.dtype, shape=tuple(t.shape)) for n, t in STATE.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(STATE.items())


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Any) -> None:
        self.held.update(weights)


class TwoRanks:
    """A tensor-parallel engine of two ranks: each call goes to both at once."""

    def __init__(self, engines: list[GlooEngine]) -> None:
        self.engines, self.calls = engines, []  # type: ignore[var-annotated]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._both(lambda engine: engine.init_transfer_engine(engine.parse_init_info(init_info)))

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.calls.append("update")
        self._both(lambda engine: engine.update_weights(update_info))

    def finish_weight_update(self) -> None:
        self.calls.append("finish")

    def _both(self, call: Any) -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(call, self.engines))


def build_engine(rank: int) -> GlooEngine:
    config: Any = SimpleNamespace(parallel_config=SimpleNamespace(rank=rank), model_config=None)
    model: Any = Model()
    return GlooEngine(SimpleNamespace(), config, torch.device("cpu"), model)  # type: ignore[arg-type]


def extend(engine: GlooEngine) -> RolloutWorkerExtension:
    """Return vLLM's worker with our extension."""
    worker = RolloutWorkerExtension()
    worker.weight_transfer_engine, worker.device = engine, torch.device("cpu")
    return worker


def test_gloo_delivers_exact_bits_to_every_rank() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    engines = [build_engine(rank) for rank in range(2)]
    client = TwoRanks(engines)
    info = GlooTrainerInitInfo("127.0.0.1", port, 3, rank=0)
    sender = GlooTrainerEngine.trainer_init(info, client=client, source=Source())
    workers = [extend(engine) for engine in engines]
    _, checksum = pack_weights(STATE.items())
    for _ in range(2):  # the group stays open
        for worker in workers:
            worker.watch_transfer()
        sender.send_weights()
        for engine in engines:
            held: Any = engine.model
            assert held.held.keys() == STATE.keys()
            assert all(torch.equal(held.held[n], t) and held.held[n].dtype == t.dtype for n, t in STATE.items())
        assert [worker.transfer_checksum() for worker in workers] == [checksum] * 2
    assert client.calls == ["start", "update", "finish"] * 2


def test_source_checksum_covers_last_pass() -> None:
    state = {name: tensor for name, tensor in STATE.items() if tensor.dtype == torch.float32}
    policy: Any = SimpleNamespace(state_to_send=lambda place: iter(state.items()), device=torch.device("cpu"))
    source = _build_source(policy)
    for _ in range(2):
        assert dict(source) == state
        assert source.checksum.hexdigest() == pack_weights(state.items())[1]


def test_other_policy_ranks_gather_without_sending() -> None:
    passed: list[str] = []

    class Counting(Source):
        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in STATE.items():
                passed.append(name)
                yield name, tensor

    sender = GlooTrainerEngine.trainer_init(GlooTrainerInitInfo("x", 1, 3, rank=1), client=None, source=Counting())
    sender.send_weights()
    assert passed == list(STATE)


def test_plan_knows_head_sizes_of_cpu_engine() -> None:
    """In this file because it has already imported vLLM, which is slow."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == CPU_HEAD_SIZES
