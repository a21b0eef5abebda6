import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError, WeightSyncError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.render import render_plan
from slurm_rl.rollout.vllm import transfer
from slurm_rl.rollout.vllm.transfer import EngineClient, _init_info, largest_bytes
from slurm_rl.rollout.weights.sync import Direct, WeightSync
from slurm_rl.rollout.weights.weight_record import HeldWeights, SentWeights
from slurm_rl.workers.train_workers import WorkerGroup
from tests.unit.rl.fake_ray import FakeCluster, Handle, actors_of


class Engine:
    def __init__(self, said: list[Any], checksums: Sequence[str] = ("sum",)) -> None:
        self.said, self.checksums = said, list(checksums)

    def ready(self) -> bool:
        return True

    def call_workers(self, method: str, arguments: Any) -> None:
        self.said.append((method, arguments))

    def confirm_weights(self, version: int, sent: SentWeights, probe: TokenPrompt) -> HeldWeights:
        self.said.append(("confirm", version, sent.checksum))
        return HeldWeights(version, self.checksums, [-1.0] * (len(probe.token_ids) - 1))


class Policy:
    def __init__(self, said: list[Any]) -> None:
        self.said = said

    def find_address(self) -> tuple[str, int]:
        return "10.0.0.1", 4242

    def open_sender(self, *args: Any) -> None:
        self.said.append(("open", args[0], *args[2:]))

    def send_weights(self, probe: TokenPrompt, *awaited: HeldWeights | bool) -> SentWeights:
        self.said.append(("send", *(one if isinstance(one, bool) else one.version for one in awaited)))
        return SentWeights("sum", [-1.0] * (len(probe.token_ids) - 1))


def build_sync(said: list[Any], sizes: list[int], *, in_order: bool = False, **lies: Any) -> WeightSync:
    cluster: Any = FakeCluster()
    policy, engines = actors_of("policy", Policy(said), Policy(said)), actors_of("rollout", Engine(said, **lies))
    transport = Direct(WorkerGroup(cluster, policy, 64, 1, "policy"), engines, sizes, "nccl", in_order=in_order)
    transport.open()
    return WeightSync(cluster, transport, engines, probe=TokenPrompt(token_ids=[1, 2]), tolerance=1e-3, timeout_s=1)


def test_client_gives_engines_rank_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda calls, timeout: calls)
    said: list[Any] = []
    client = EngineClient([Handle(Engine(said)) for _ in range(3)], [2, 4, 1], 1.0)
    client.init_weight_transfer_engine({"master_port": 1, "rank_offset": 1})
    assert [arguments["init_info"]["rank_offset"] for _, arguments in said] == [1, 3, 7]
    said.clear()
    client.init_weight_transfer_engine({"packed": True})  # ipc has no group
    assert [arguments["init_info"] for _, arguments in said] == [{"packed": True}] * 3


def test_push_sends_after_last_version_is_confirmed() -> None:
    said: list[Any] = []
    sync = build_sync(said, [4])
    sync.push(7)
    assert sync.verify() == 0.0
    opened = ("open", "nccl", [4], ("10.0.0.1", 4242))
    assert said == [opened, opened, ("send",), ("send",), ("confirm", 7, "sum")]
    sync.push(8)
    assert said[5:] == [("send", 7), ("send", 7), ("confirm", 8, "sum")], "nothing is sent before it was confirmed"


def test_push_waits_for_engines_that_execute_calls_in_order() -> None:
    """Ray starts the policy's call when the engine's earlier calls, such as a batch, are done."""
    said: list[Any] = []
    sync = build_sync(said, [1], in_order=True)
    sync.push(7)
    sync.push(8)
    assert [one for one in said if one[0] == "send"] == [("send", True)] * 2 + [("send", 7, True)] * 2


@pytest.mark.parametrize(("checksums", "passes"), [(["sum", "sum"], True), (["sum", "other"], False), ([], False)])
def test_verify_raises_if_one_rank_has_other_bytes(checksums: list[str], passes: bool) -> None:
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
        (["rollout.weight_transfer=ipc", "rollout.colocate=false"], ["colocated", "colocate=False"]),
        (["rollout.weight_transfer=nccl", "rollout.colocate=true"], ["nccl needs engines with their own GPUs"]),
        (["rollout.weight_transfer=gloo", "+cluster=nvidia_h100"], ["for accelerator 'cpu'", "'nvidia'"]),
        (["rollout.weight_transfer=tcp"], ["rollout.weight_transfer", "'nccl'"]),
    ],
)
def test_config_rejects_impossible_transfers(words: list[str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    assert all(name in str(caught.value) for name in names), str(caught.value)


def test_ipc_sends_tensor_larger_than_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own producer on CPU, without the handle of GPU memory and the stream."""
    from vllm.distributed.weight_transfer import packed_tensor

    monkeypatch.setattr(transfer, "BUCKET_BYTES", 1024)
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


FACTS = SubmitFacts("/env/bin/python", 2, "1")
GPUS = ["+exp=demo", "+cluster=nvidia_h100", "cluster.num_nodes=1"]
AHEAD = ["rollout.max_off_policy_steps=1"]


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (GPUS, "ipc"),
        ([*GPUS, "rollout.colocate=false"], "nccl"),
        ([*GPUS, *AHEAD, "rollout.inflight_weight_updates=true"], "nccl"),
        ([*GPUS, *AHEAD], "nccl"),
        ([*GPUS, "rollout.weight_transfer=ray"], "ray"),
        # Two policy workers, engines on all eight GPUs: six of them would have no handle for the policy's memory.
        ([*GPUS, "rollout.colocate=true", "policy.num_workers=2"], "ray"),
        (["+exp=demo"], "ray"),
        (["+exp=demo", "rollout.weight_transfer=gloo"], "gloo"),
        (["+exp=demo", *AHEAD, "rollout.inflight_weight_updates=true", "rollout.weight_transfer=gloo"], "gloo"),
    ],
)
def test_plan_chooses_direct_transfer_where_possible(words: list[str], way: str) -> None:
    plan = build_plan(load_config(words), "/runs/one", FACTS)
    assert plan.weight_transfer == JobPlan.from_json(json.loads(json.dumps(plan.to_json()))).weight_transfer == way
    assert f"weight transfer by {way}" in render_plan(plan)


def test_ipc_needs_policy_worker_on_each_engine_gpu() -> None:
    config = load_config([*GPUS, "rollout.colocate=true", "rollout.weight_transfer=ipc", "policy.num_workers=2"])
    with pytest.raises(ConfigError, match=r"ipc needs a policy worker on each GPU.*none on GPU 2 of node 0"):
        build_plan(config, "/runs/one", FACTS)
