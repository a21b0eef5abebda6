"""Engines that share GPUs with the policy sleep and wake in the right order. A fake vLLM records the calls."""

import asyncio
import json
import os
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.engine_args import OURS
from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Prompts, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import ConfigError
from slurm_rl.rollout.engine import GenerationRequest
from slurm_rl.rollout.vllm import engine as vllm_engine
from slurm_rl.rollout.vllm.async_engine import AsyncVLLMEngine
from slurm_rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo import build, run_grpo
from slurm_rl.trainers.grpo.batch_queue import Collected
from slurm_rl.trainers.grpo.judges import Judge
from slurm_rl.trainers.grpo.learner import Learned
from slurm_rl.trainers.grpo.trainer import GRPOTrainer
from tests.unit.rl.fake_vllm import install

PROBE = TokenPrompt(token_ids=[1, 2])


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return install(monkeypatch)


def build_engine(*, colocate: bool, num_gpus: int) -> VLLMEngine:
    return VLLMEngine("/m", ModelConfig(path="/m"), RolloutConfig(colocate=colocate), 16, num_gpus)


def test_sleep_puts_partly_awake_engine_to_sleep(calls: list[str]) -> None:
    engine = build_engine(colocate=True, num_gpus=1)
    assert engine.llm.options["enable_sleep_mode"]
    engine.sleep()
    engine.sleep()  # no-op
    engine._wake("weights")  # as in a failed transfer
    engine.sleep()
    assert calls == ["sleep 2", "wake weights", "sleep 2"]
    assert engine.asleep == {"weights", "kv_cache"}


def test_sleep_keeps_base_of_swapped_adapters(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Level 1 copies the base to host memory; only adapters arrive."""
    monkeypatch.setattr(vllm_engine, "choose_load", lambda _: ("load_adapters", "policy"))
    engine = build_engine(colocate=True, num_gpus=1)
    engine.sleep()
    engine.load_weights(0, [], PROBE)
    assert calls == ["sleep 1", "wake weights", "load_adapters", "wake kv_cache", "reset", "engine's probe"]


@pytest.mark.parametrize(("colocate", "num_gpus"), [(True, 0), (False, 1)])
def test_sleep_is_noop_without_shared_gpus(colocate: bool, num_gpus: int, calls: list[str]) -> None:
    engine = build_engine(colocate=colocate, num_gpus=num_gpus)
    engine.sleep()
    engine.load_weights(0, [], PROBE)
    assert calls == ["load_named_weights", "reset", "engine's probe"]
    assert "enable_sleep_mode" not in engine.llm.options


def test_load_returns_checksum_per_tensor_parallel_rank() -> None:
    engine = build_engine(colocate=False, num_gpus=4)
    assert engine.llm.options["distributed_executor_backend"] == "mp"
    assert engine.load_weights(0, [], PROBE).checksums == ["sum"] * 4


def test_cpu_cache_has_configured_or_needed_size(tmp_path: Path) -> None:
    def cache(**settings: Any) -> int:
        model, rollout = ModelConfig(path=str(tmp_path), dtype="float32"), RolloutConfig(**settings)
        options = VLLMEngine(str(tmp_path), model, rollout, max_model_len=200, num_gpus=0).llm.options
        assert "gpu_memory_utilization" not in options
        return int(options["kv_cache_memory_bytes"])

    assert cache() == 2**30  # the model is unknown
    shape = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"num_attention_heads": 2, "num_key_value_heads": 1}))
    # 200 tokens take two blocks of 128; a token has keys and values of 3 layers with one head of 32 float32 values.
    assert cache(max_num_seqs=4) == (4 * 2 + 1) * 128 * (2 * 3 * 32 * 4)
    assert cache(max_num_seqs=100_000) == 2**30
    assert cache(cpu_kv_cache_gb=0.25) == 2**28
    assert "kv_cache_memory_bytes" not in build_engine(colocate=False, num_gpus=1).llm.options


@pytest.mark.parametrize("num_gpus", [0, 1, 4])
def test_engine_args_are_reserved_or_configurable(num_gpus: int) -> None:
    assert set(build_engine(colocate=True, num_gpus=num_gpus).llm.options) <= set(OURS)
    rollout = RolloutConfig(engine_args={"quantization": "fp8"})
    assert VLLMEngine("/m", ModelConfig(path="/m"), rollout, 16, num_gpus).llm.options["quantization"] == "fp8"


class Recorder:
    """Record the name of every method call."""

    def __init__(self, said: list[str], **results: Any) -> None:
        self.said, self.results = said, results

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            self.said.append(name)
            return self.results.get(name)

        return call


def make_trainer(words: list[str], folder: Path, fake: Any) -> Any:
    prompts = Prompts([EncodedPrompt(index=0, token_ids=[1], text="3", answer="")], [], [])
    return GRPOTrainer(load_config(["+exp=demo", *words]), RunDir(folder), prompts, *[fake] * 6)


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["rollout.colocate=true"], ["take", "sleep", "learn", "push", "verify"]),
        ([], ["take", "learn", "push", "verify"]),
    ],
)
def test_engines_sleep_between_sampling_and_new_weights(words: list[str], order: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    fake: Any = Recorder(said, verify=0.0, take=Collected([], [], 1), learn=Learned([], 0, None))
    trainer = make_trainer(words, tmp_path, fake)
    trainer.queue = fake
    trainer.grpo_step()
    assert said == order


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["rollout.colocate=true"], ["start_engines", "wait_until_ready", "sleep", "start_policy", "wait_until_ready"]),
        ([], ["start_engines", "start_policy", "wait_until_ready"]),
    ],
)
def test_colocated_engines_sleep_before_policy_starts(
    words: list[str], order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM sizes its cache from free memory, which other processes change meanwhile."""
    said: list[str] = []
    group: Any = SimpleNamespace(workers=[], call=lambda *_: None, note_rows=lambda _: None)
    results = {"start_engines": [], "start_policy": group, "start_reference": group, "start_critic": None}
    fake: Any = Recorder(said, **results, load_text_config=SimpleNamespace(num_hidden_layers=1), choose_probe=PROBE)
    fake.results |= {"build_sampler": fake, "GRPOTrainer": fake}
    others = ["build_transport", "wait_until_ready", "tell_rows", "load_text_config", "choose_probe"]
    for name in [*results, *others, "build_sampler", "GRPOTrainer", "RunSaver"]:
        for module in (build, run_grpo):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(fake, name))
    config = load_config(["+exp=demo", "data.max_prompt_tokens=8", *words])
    monkeypatch.setattr(RunDir, "require_ours", lambda _: None)
    cluster: Any = SimpleNamespace(stop=SimpleNamespace(age_s=None))
    judges = {"": Judge(fake, None)}
    run_grpo._train(RunDir(tmp_path), config, cluster, "/m", fake, judges, fake, RunDir(tmp_path).attempt(1))
    assert [name for name in said if name in {*order, "sleep"}] == order


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["rollout.colocate=true"], ["open", "sleep", "warm_up", "push", "verify", "verify"]),
        ([], ["warm_up", "engines are up", "open", "push", "verify", "verify"]),
    ],
)
def test_transfer_opens_before_engines_sleep_again(words: list[str], order: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    fake: Any = Recorder(said, verify=0.0)
    fake.transport = fake
    trainer = make_trainer(words, tmp_path, fake)
    trainer.evaluator, trainer.warm_up, trainer.save_if_due = Recorder([]), fake.warm_up, lambda: None
    trainer.metrics = SimpleNamespace(steps=Recorder([]))
    trainer.begin(lambda: said.append("engines are up"))
    assert said == order


def test_colocate_rejects_staleness() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_off_policy_steps must be 0 with rollout\.colocate.*got 1"):
        load_config(["+exp=demo", "rollout.colocate=true", "rollout.max_off_policy_steps=1"])


SPEC = SamplingSpec(1, 4, 1.0, 1.0, 0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncVLLMEngine:
    install(monkeypatch)
    return AsyncVLLMEngine("/m", ModelConfig(path="/m"), RolloutConfig(), 16, 0, awaits_weights=True)


def requests(*prompts: list[int]) -> list[GenerationRequest]:
    return [GenerationRequest(f"{at}", array("i", ids).tobytes(), at, SPEC) for at, ids in enumerate(prompts)]


def test_collect_returns_responses_and_rejections(engine: AsyncVLLMEngine) -> None:
    async def run() -> None:
        await engine.submit("driver", requests([5, 6], [], [7]))
        responses, rejected = await engine.collect("driver", 10.0, 0.01)
        assert {name: one.unpack().token_ids for name, one in responses} == {"0": [5, 6], "2": [7]}
        assert rejected == [("1", "ValueError: The decoder prompt cannot be empty")]
        assert await engine.collect("driver", 0.01, 0.0) == ([], [])

    engine.llm.version = "3"
    asyncio.run(run())


def test_requests_wait_for_first_weights(engine: AsyncVLLMEngine) -> None:
    async def run() -> None:
        assert await engine.ready()
        await engine.submit("driver", requests([5]))
        assert await engine.collect("driver", 0.05, 0.0) == ([], [])
        held = await engine.load_weights(7, [], SimpleNamespace(token_ids=[1, 2], images=()))  # type: ignore[arg-type]
        assert (held.version, held.checksums, held.probe) == (7, ["sum"], [-1.0])
        [(_, response)], _ = await engine.collect("driver", 10.0, 0.0)
        assert response.weight_version == 7

    asyncio.run(run())


CALLS: dict[str, Callable[[AsyncVLLMEngine], Coroutine[Any, Any, Any]]] = {
    "generate": lambda engine: engine.generate([requests([5])[0].prompt], [0], SPEC),
    "load_weights": lambda engine: engine.load_weights(1, [], requests([5])[0].prompt),
    "call_workers": lambda engine: engine.call_workers("update_weights", {}),
    "confirm_weights": lambda engine: engine.confirm_weights(1, None, requests([5])[0].prompt),
}


@pytest.mark.parametrize("call", CALLS)
def test_actor_exits_after_engine_process_died(
    engine: AsyncVLLMEngine, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The supervisor restarts lost actors; an actor without an engine would reject all requests."""

    def exit_process(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", exit_process)
    engine.llm.errored = True
    with pytest.raises(SystemExit):
        asyncio.run(CALLS[call](engine))
