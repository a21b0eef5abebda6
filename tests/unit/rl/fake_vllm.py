"""Fakes of vLLM's `LLM` and `AsyncLLM` that record their calls."""

import asyncio
import sys
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PROBED = [None, {2: SimpleNamespace(logprob=-1.0)}]


class FakeLLM:
    """`LLM`, its engine and its output processor in one class."""

    said: list[str]
    checksum = "sum"

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.llm_engine = self.output_processor = self
        self.process_outputs = self.set_weight_version = lambda *_: None

    def get_tokenizer(self) -> None:
        return None

    def collective_rpc(self, method: str, args: Any = (), kwargs: Any = None) -> list[str]:
        self.said.append(method)
        return [self.checksum] * self.options["tensor_parallel_size"]

    def sleep(self, level: int) -> None:
        self.said.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.said.append(f"wake {tags[0]}")

    def reset_prefix_cache(self) -> None:
        self.said.append("reset")

    def generate(self, prompts: Any, params: Any, use_tqdm: bool, lora_request: Any) -> Any:
        self.said.append("engine's probe")
        return [SimpleNamespace(prompt_logprobs=PROBED)]


class FakeAsyncLLM:
    """Echo prompts, labelled with the weight version, unless paused; reject an empty prompt as vLLM does."""

    said: list[str]
    checksum = "sum"

    from_engine_args = classmethod(lambda cls, args: cls())

    def __init__(self) -> None:
        self.output_processor = SimpleNamespace(process_outputs=None)
        self.running, self.version, self.errored = asyncio.Event(), "-1", False
        self.running.set()

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(decode=lambda ids, skip_special_tokens: str(ids))

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("keep", False)
        self.said.append("pause")
        self.running.clear()

    async def resume_generation(self) -> None:
        self.said.append("resume")
        self.running.set()

    async def update_weight_version(self, version: str) -> None:
        self.version = version

    async def reset_prefix_cache(self, *, reset_running_requests: bool) -> None:
        assert reset_running_requests and not self.running.is_set()
        self.said.append("reset")

    async def collective_rpc(self, method: str, args: Any = (), kwargs: Any = None) -> list[str]:
        if self.errored:
            raise RuntimeError("the engine died")
        self.said.append(method)
        return [self.checksum]

    async def generate(
        self, prompt: dict[str, Any], params: Any, request_id: str, lora_request: Any
    ) -> AsyncIterator[Any]:
        if self.errored:
            raise RuntimeError("the engine died")
        if not (ids := prompt["prompt_token_ids"]):
            raise ValueError("The decoder prompt cannot be empty")
        await self.running.wait()
        if hasattr(params, "prompt_logprobs"):
            self.said.append("engine's probe")
        logprobs = [{token: SimpleNamespace(logprob=-1.0)} for token in ids]
        spans = [SimpleNamespace(version=self.version, start=0, end=len(ids))]
        item = SimpleNamespace(
            index=0, token_ids=ids, logprobs=logprobs, weight_versions=spans, finish_reason="stop", stop_reason=None
        )
        yield SimpleNamespace(outputs=[item], prompt_logprobs=PROBED)


def install(monkeypatch: pytest.MonkeyPatch, checksum: str = "sum") -> list[str]:
    """Replace vLLM by the fakes, and return the list of their calls."""
    said: list[str] = []
    vllm, config, params = map(ModuleType, ("vllm", "vllm.config.weight_transfer", "vllm.sampling_params"))
    args, engine = map(ModuleType, ("vllm.engine.arg_utils", "vllm.v1.engine.async_llm"))
    vllm.LLM, config.WeightTransferConfig = FakeLLM, SimpleNamespace  # type: ignore[attr-defined]
    params.SamplingParams, params.RequestOutputKind = SimpleNamespace, SimpleNamespace(FINAL_ONLY=None)  # type: ignore[attr-defined]
    args.AsyncEngineArgs, engine.AsyncLLM = SimpleNamespace, FakeAsyncLLM  # type: ignore[attr-defined]
    packages = map(ModuleType, ("vllm.config", "vllm.engine", "vllm.v1", "vllm.v1.engine"))
    for module in (vllm, *packages, config, params, args, engine):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for fake in (FakeLLM, FakeAsyncLLM):
        monkeypatch.setattr(fake, "said", said, raising=False)
        monkeypatch.setattr(fake, "checksum", checksum)
    return said
