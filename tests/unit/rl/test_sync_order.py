"""The order of a weight sync, from the policy's last kernel to the engine's first token, for each transport.

A recorder replaces torch.cuda and vLLM; transports, policy worker and engine are real, in one process.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.models import distributed
from slurm_rl.rollout.vllm import transfer
from slurm_rl.rollout.vllm.async_engine import AsyncVLLMEngine
from slurm_rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.rollout.vllm.transfer import EngineClient
from slurm_rl.rollout.weights.checksum import WeightChecksum
from slurm_rl.rollout.weights.sync import Direct, ObjectStore, WeightSync
from slurm_rl.rollout.weights.weight_record import pack_weights
from slurm_rl.workers import weight_sender
from slurm_rl.workers.train_workers import PolicyWorker, WorkerGroup
from tests.unit.rl.fake_ray import FakeCluster, actors_of
from tests.unit.rl.fake_vllm import install

PROBE = TokenPrompt(token_ids=[1, 2])
WEIGHTS = {"w": torch.ones(3)}
CHECKSUM = pack_weights(WEIGHTS.items())[1]


class FakeSender:
    """Record the order of requests from vLLM's sender to the engines."""

    def __init__(self, client: EngineClient) -> None:
        self.client, self.source = client, SimpleNamespace(checksum=WeightChecksum())

    def send_weights(self) -> None:
        self.client.start_weight_update()
        self.client.update_weights({})
        self.source.checksum = WeightChecksum()
        for _ in self.source.checksum.passing(WEIGHTS.items()):
            pass
        self.client.finish_weight_update()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said = install(monkeypatch, CHECKSUM)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: said.append("free"))
    monkeypatch.setattr(distributed, "gather_objects", lambda _: said.append("all ranks"))
    monkeypatch.setattr(ray, "get", lambda calls, timeout: calls)
    monkeypatch.setattr(weight_sender, "find_address", lambda: ("10.0.0.1", 1))
    monkeypatch.setattr(transfer, "open_sender", lambda backend, rank, policy, client, *_: FakeSender(client))
    return said


def build_policy(said: list[str], config: Any) -> PolicyWorker:
    def note(what: str, value: Any) -> Callable[..., Any]:
        return lambda *_: said.append(what) or value

    policy = PolicyWorker.__new__(PolicyWorker)
    policy.config, policy.device = config, torch.device("cpu")
    engine: Any = SimpleNamespace(state_to_send=note("gather", WEIGHTS.items()))
    policy.engine = engine
    policy._probe = note("policy's probe", [-1.0])  # type: ignore[method-assign]
    return policy


GATHER, FREE, RESET = ["gather", "policy's probe"], ["free", "all ranks"], ["reset", "engine's probe"]
PAUSE, RESUME = "pause", ["reset", "resume", "engine's probe"]
SEND = ["watch_transfer", "start_weight_update", "update_weights", "finish_weight_update"]
BEGIN = ["policy's probe", "synchronize"]


@pytest.mark.parametrize(
    ("way", "colocate", "continuous", "order"),
    [
        ("ray", False, False, [*GATHER, "load_named_weights", *RESET]),
        ("ray", False, True, [*GATHER, PAUSE, "load_named_weights", *RESUME]),
        ("ray", True, False, [*GATHER, *FREE, "wake weights", "load_named_weights", "wake kv_cache", *RESET]),
        ("gloo", False, False, [*BEGIN, *SEND, "transfer_checksum", *RESET]),
        ("nccl", False, False, [*BEGIN, *SEND, "transfer_checksum", *RESET]),
        ("nccl", False, True, [*BEGIN, PAUSE, *SEND, "transfer_checksum", *RESUME]),
        (
            "ipc",
            True,
            False,
            [*BEGIN, *FREE, "wake weights", *SEND, *FREE, "transfer_checksum", "wake kv_cache", *RESET],
        ),
    ],
)
def test_sync_calls_are_in_order(way: str, colocate: bool, continuous: bool, order: list[str], said: list[str]) -> None:
    words = [f"rollout.colocate={colocate}".lower(), *(["rollout.max_off_policy_steps=1"] if continuous else [])]
    config = load_config(["+exp=demo", *words, f"rollout.inflight_weight_updates={continuous}".lower()])
    rollout = RolloutConfig(
        colocate=colocate, weight_transfer=way, inflight_weight_updates=continuous, max_off_policy_steps=int(continuous)
    )
    kind = AsyncVLLMEngine if continuous else VLLMEngine
    engines = actors_of("rollout", kind("/m", ModelConfig(path="/m"), rollout, 16, num_gpus=1))
    workers = actors_of("policy", build_policy(said, config))
    cluster: Any = FakeCluster()
    group = WorkerGroup(cluster, workers, 64, 1, "policy")
    transport = ObjectStore(workers, engines) if way == "ray" else Direct(group, engines, [1], way)
    sync = WeightSync(cluster, transport, engines, probe=PROBE, tolerance=1e-3, timeout_s=1)
    transport.open()
    for version in (1, 2):
        engines[0].handle.sleep.remote()
        said.clear()
        sync.push(version)
        assert sync.verify() == 0.0
        assert said == order
