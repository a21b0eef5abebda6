"""Send weights of a tiny MoE to a real vLLM engine in three ways; write the result of each sync."""

import json
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.load import load_config
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import WeightSyncError
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.plan.job import ActorPlan
from slurm_rl.rollout.vllm.gloo_transfer import GlooTrainerEngine, GlooTrainerInitInfo
from slurm_rl.rollout.vllm.transfer import _build_source
from slurm_rl.rollout.vllm.worker_extension import RolloutWorkerExtension
from slurm_rl.rollout.weights.sync import ObjectStore, Push, WeightSync, choose_tolerance
from slurm_rl.rollout.weights.weight_record import SentWeights
from slurm_rl.trainers.grpo.build import start_engine
from slurm_rl.workers.ray_driver import Actor
from slurm_rl.workers.train_workers import PolicyWorker
from tests.tiny_models import TinyModel
from tests.tiny_moe import build_tiny_moe
from tests.train.continuous_script import OneEngine
from tests.unit.models.test_store_address import free_port
from tests.unit.rl.fake_ray import Handle

PROBE = TokenPrompt(token_ids=[2 + (5 * place) % 12 for place in range(32)])


class OneProcess:
    """`Cluster` with actors in this process."""

    plan = SimpleNamespace(weight_transfer="gloo", actors=[ActorPlan("rollout", 0, 0, (), 1)])

    def place(self, actor: ActorPlan, cls: type, *args: Any, **_: Any) -> Actor:
        return Actor("rollout-0", Handle(cls(*args)))

    def gather(self, calls: Any, **_: Any) -> list[Any]:
        return [value for _, value in calls]


class Gloo:
    """`Direct` without Ray."""

    needs_all = True

    def __init__(self, policy: PolicyWorker, engine: Actor) -> None:
        self.policy, self.engine = policy, engine
        info = GlooTrainerInitInfo("127.0.0.1", free_port(), 2, rank=0)
        self.source = _build_source(policy.engine)
        self.sender = GlooTrainerEngine.trainer_init(
            info, client=OneEngine(engine.handle.target.call_workers), source=self.source
        )

    def open(self) -> None: ...

    def push(self, version: int, probe: TokenPrompt) -> Push:
        self.sender.send_weights()
        sent = SentWeights(self.source.checksum.hexdigest(), self.policy._probe(probe))
        held = self.engine.handle.confirm_weights.remote(version, sent, probe)
        return Push(version, [(Actor("policy-0", None), sent)], [(self.engine, held)])


def build_policy(folder: Path, lora: LoraConfig | None) -> PolicyWorker:
    """Build one policy rank without a process group."""
    model = ModelConfig(path=str(folder), lora=lora)
    policy = PolicyWorker.__new__(PolicyWorker)
    policy.config = load_config(["+exp=demo"]).model_copy(update={"model": model})
    policy.engine = PolicyEngine(folder, model, PolicyConfig(num_threads=1), OptimConfig(), temperature=1.0)
    policy.device = policy.engine.device
    return policy


def move(policy: PolicyWorker) -> None:
    """Change all trained weights, as a large optimizer step does."""
    with torch.no_grad():
        for parameter in policy.engine.module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))


def receive_without_use(extension: Any, weights: Any) -> None:
    """Replace the reload: compute the checksum but leave the model unchanged."""
    deque(weights, maxlen=0)


def main(folder: Path, family: str) -> None:
    shape = TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1)
    build_tiny_moe(shape, folder / "m", family)
    config = load_config(
        [
            "+exp=demo",
            "model=hf",
            f"model.path={folder / 'm'}",
            "rollout.weight_transfer=gloo",
            "data.max_prompt_tokens=48",
        ]
    )
    prompts, cluster = SimpleNamespace(max_images=None, tools=None), OneProcess()
    engine = start_engine(cluster, config, str(folder / "m"), prompts, 0)  # type: ignore[arg-type]
    targets = ("q_b_proj", "kv_b_proj") if family == "deepseek_v3" else ("q_proj", "v_proj")
    experts = ("experts.gate_up_proj", "experts.down_proj")
    lora = LoraConfig(rank=4, target_modules=targets, target_parameters=experts)
    whole, adapted = (build_policy(folder / "m", one) for one in (None, lora))

    def sync(policy: PolicyWorker, transport: Callable[[], Any]) -> float | str:
        weights = WeightSync(
            cluster,  # type: ignore[arg-type]
            transport(),
            [engine],
            probe=PROBE,
            tolerance=choose_tolerance(None, "float32", 2),
            timeout_s=60,
        )
        weights.push(1)
        try:
            return weights.verify()
        except WeightSyncError as error:
            return str(error)

    def store(policy: PolicyWorker) -> Callable[[], Any]:
        return lambda: ObjectStore([Actor("policy-0", Handle(policy))], [engine])

    found: dict[str, Any] = {}
    extension: Any = RolloutWorkerExtension
    real, extension._reload = extension._reload, receive_without_use
    found["unused"] = {"whole": sync(whole, store(whole)), "merged": sync(adapted, store(adapted))}
    extension._reload = real
    torch.manual_seed(0)
    gloo = Gloo(whole, engine)
    for name, policy, transport in (
        ("store", whole, store(whole)),
        ("gloo", whole, lambda: gloo),
        ("merged", adapted, store(adapted)),
    ):
        found[name] = [sync(policy, transport)]
        for _ in range(2):
            move(policy)
            found[name].append(sync(policy, transport))
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
