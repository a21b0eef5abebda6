"""Direct weight transfer: who has which rank, in which order things are asked for, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError, WeightSyncError
from slurm_rl.math.sequences import TokenPrompt
from slurm_rl.rl.rollout.vllm.transfer import EngineClient, _init_info, largest_bytes
from slurm_rl.rl.weights.sync import Direct, WeightSync
from slurm_rl.rl.weights.weight_record import HeldWeights, SentWeights
from slurm_rl.rl.workers.policy_worker import PolicyWorker
from slurm_rl.rl.workers.ray_driver import Actor
from slurm_rl.rl.workers.worker_group import WorkerGroup


class Remote:
    def __init__(self, function: Any) -> None:
        self.remote = function


class FakeEngine:
    def __init__(self, said: list[Any], *, checksums: Sequence[str] = ("sum",)) -> None:
        self.call_workers = Remote(lambda method, arguments: said.append((method, arguments)))

        def confirm(version: int, sent: SentWeights, probe: TokenPrompt) -> HeldWeights:
            said.append(("confirm", version, sent.checksum))
            return HeldWeights(version, list(checksums), [-1.0] * (len(probe.token_ids) - 1))

        self.confirm_weights = Remote(confirm)


class FakePolicy:
    def __init__(self, said: list[Any]) -> None:
        self.find_address = Remote(lambda: ("10.0.0.1", 4242))
        self.open_sender = Remote(lambda *args: said.append(("open", args[1], args[2])))

        def send(probe: TokenPrompt) -> SentWeights:
            said.append("send")
            return SentWeights("sum", [-1.0] * (len(probe.token_ids) - 1))

        self.send_weights = Remote(send)


class FakeCluster:
    def gather(self, calls: Sequence[tuple[Actor, Any]], **_: Any) -> list[Any]:
        return [value for _, value in calls]


def build_sync(said: list[Any], sizes: list[int], **lies: Any) -> WeightSync:
    cluster: Any = FakeCluster()
    policy = [Actor(f"policy-{rank}", FakePolicy(said)) for rank in range(2)]
    engines = [Actor("rollout-0", FakeEngine(said, **lies))]
    transport = Direct(WorkerGroup(cluster, policy, 64, 1, "policy"), engines, sizes)
    transport.open()
    return WeightSync(cluster, transport, engines, probe=TokenPrompt(token_ids=[1, 2]), tolerance=1e-3, timeout_s=1)


def test_every_tensor_parallel_rank_of_every_engine_has_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda calls, timeout: calls)
    said: list[Any] = []
    client = EngineClient([FakeEngine(said) for _ in range(3)], [2, 4, 1], 1.0)
    client.init_weight_transfer_engine({"master_port": 1, "rank_offset": 1})
    assert [arguments["init_info"]["rank_offset"] for _, arguments in said] == [1, 3, 7]
    said.clear()
    client.init_weight_transfer_engine({"packed": True})  # ipc has no group
    assert [arguments["init_info"] for _, arguments in said] == [{"packed": True}] * 3


def test_every_rank_sends_and_engines_confirm_what_was_sent() -> None:
    said: list[Any] = []
    sync = build_sync(said, [4])
    sync.push(7)
    assert sync.verify() == 0.0
    opened = ("open", [4], ("10.0.0.1", 4242))
    assert said == [opened, opened, "send", "send", ("confirm", 7, "sum")]


@pytest.mark.parametrize(("checksums", "passes"), [(["sum", "sum"], True), (["sum", "other"], False), ([], True)])
def test_one_rank_with_other_bytes_is_enough(checksums: list[str], passes: bool) -> None:
    """Where a transfer engine knows no checksum, as nccl's and ipc's do not, version and probe are the proof."""
    sync = build_sync([], [2], checksums=checksums)
    sync.push(1)
    if passes:
        assert sync.verify() == 0.0
    else:
        with pytest.raises(WeightSyncError, match="rollout-0"):
            sync.verify()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["rollout.weight_transfer=nccl"], ["needs GPUs", "'cpu'"]),
        (["rollout.weight_transfer=ipc"], ["colocated", "colocate=False"]),
        (["rollout.weight_transfer=nccl", "rollout.colocate=true"], ["nccl needs engines with GPUs of their own"]),
        (["rollout.weight_transfer=gloo", "rollout.max_staleness=1"], ["max_staleness", "gloo and 1"]),
        (["rollout.weight_transfer=gloo", "+lora=all_linear"], ["model.lora", "got gloo"]),
        (["rollout.weight_transfer=gloo", "+cluster=nvidia_h100"], ["for accelerator 'cpu'", "'nvidia'"]),
        (["rollout.weight_transfer=tcp"], ["rollout.weight_transfer", "'nccl'"]),
    ],
)
def test_a_transfer_that_cannot_be_is_refused(words: list[str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    assert all(name in str(caught.value) for name in names), str(caught.value)


@pytest.mark.parametrize("colocate", [True, False])
def test_the_policys_kernels_end_and_its_cache_goes_before_anything_is_sent(
    colocate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent first wakes an engine up, which needs the memory; and vLLM packs on streams that wait for nobody."""
    said: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: said.append("free"))
    source = PolicyWorker.__new__(PolicyWorker)
    source.config = load_config(["+exp=demo", f"rollout.colocate={colocate}"])
    source.sender = SimpleNamespace(send_weights=lambda: said.append("send"), checksum="sum")
    monkeypatch.setattr(source, "_probe", lambda probe: said.append("probe") or [-1.0])
    source.send_weights(TokenPrompt(token_ids=[1, 2]))
    freed = ["free"] if colocate else []
    assert said == ["synchronize", *freed, "send", "probe", *freed]


def test_a_tensor_larger_than_vllms_buffer_is_sent_by_ipc(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own producer on CPU, with the handle of GPU memory and the stream left out."""
    from vllm.distributed.weight_transfer import packed_tensor

    monkeypatch.setattr(packed_tensor, "DEFAULT_PACKED_BUFFER_SIZE_BYTES", 1024)
    tensors = {"embedding": torch.arange(600.0), "norm": torch.arange(7.0), "head": torch.arange(512.0)}
    metadata = [SimpleNamespace(name=name, dtype=one.dtype, shape=one.shape) for name, one in tensors.items()]
    info = _init_info("ipc", 0, 1, ("", 0), largest_bytes(metadata))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, device, **options: empty(*args, **options))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(packed_tensor, "reduce_tensor", lambda buffer: (None, (buffer,)))
    found = {}
    for chunk in packed_tensor.packed_ipc_producer(
        iter(tensors.items()), "GPU-0", lambda pair: pair[1], info.packed_buffer_size_bytes
    ):
        [(buffer,)] = chunk.ipc_handle.values()
        for name, part in zip(chunk.names, buffer[: sum(chunk.tensor_sizes)].split(chunk.tensor_sizes), strict=True):
            found[name] = part.clone().view(torch.float32)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
