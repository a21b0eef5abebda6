"""Logic of the asynchronous engine, with a fake AsyncLLM."""

import asyncio
import os
from array import array
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.rollout.engine import GenerationRequest
from slurm_rl.rollout.vllm.async_engine import AsyncVLLMEngine
from tests.unit.rl.fake_vllm import install

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
