"""The engine of asynchronous runs: vLLM's `AsyncLLM` in an asynchronous Ray actor.

Requests arrive at any time. New weights pause the requests in flight, which then continue with the new weights: the
tokens so far stay, their keys and values are recomputed, and each token is labelled with its weight version
(PipelineRL, https://arxiv.org/abs/2509.19128; partial rollouts in AReaL, https://arxiv.org/abs/2505.24298).
"""

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import SamplingSpec, Trajectory
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.errors import ConfigError
from slurm_rl.node.processes import end_life_before
from slurm_rl.rewards.values import describe_error
from slurm_rl.rollout.engine import Generated, GenerationRequest, Rejected
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.vllm.engine import SLEEP_TAGS, choose_load
from slurm_rl.rollout.vllm.engine_args import build_engine_args
from slurm_rl.rollout.vllm.outputs import (
    CompletionBuilder,
    beat_with_output,
    build_params,
    build_probe_params,
    read_probe,
)
from slurm_rl.rollout.vllm.vision_inputs import build_input
from slurm_rl.rollout.weights.weight_record import HeldWeights, WeightRecord

logger = logging.getLogger(__name__)


class Mailbox:
    """Finished requests of one client, until it collects them."""

    def __init__(self) -> None:
        self.responses: list[Generated] = []
        self.rejected: list[Rejected] = []
        self.arrived = asyncio.Event()

    async def collect(self, wait_s: float, delay_s: float) -> tuple[list[Generated], list[Rejected]]:
        """Return all results; wait up to `wait_s` for the first, and then `delay_s` for others."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.arrived.wait(), wait_s)
            await asyncio.sleep(delay_s)
        responses, rejected = self.responses, self.rejected
        self.responses, self.rejected = [], []
        self.arrived.clear()
        return responses, rejected


class AsyncVLLMEngine:
    """`AsyncRolloutEngine` around vLLM's `AsyncLLM`."""

    def __init__(
        self,
        model_path: str,
        model: ModelConfig,
        rollout: RolloutConfig,
        max_model_len: int,
        num_gpus: int,
        max_images: int | None = None,
        tools: ToolSyntax | None = None,
        awaits_weights: bool = False,
    ) -> None:
        """Start vLLM; the arguments are those of `VLLMEngine`. Requests wait for the first weights."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        end_life_before()
        if rollout.weight_transfer == "ipc":
            # vLLM passes GPU memory handles to its engine process as pickled objects, which this permits.
            os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        self.load_call, self.adapter = choose_load(rollout)
        self.sleep_level = 2 if self.adapter is None else 1
        self.awaits_weights = awaits_weights
        args = build_engine_args(model_path, model, rollout, max_model_len, num_gpus, max_images, awaits_weights)
        self.llm: Any = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**args, enable_log_requests=False, disable_log_stats=True)
        )
        self.sleeps, self.asleep = rollout.colocate and num_gpus > 0, set[str]()
        self.builder = CompletionBuilder(self.llm.get_tokenizer(), tools)
        beat_with_output(self.llm.output_processor)
        self._mailboxes: defaultdict[str, Mailbox] = defaultdict(Mailbox)
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._updating = asyncio.Lock()

    async def ready(self) -> bool:
        if self.awaits_weights:
            await self._pause()
        else:
            await self.llm.update_weight_version("-1")
        return True

    async def generate(
        self, prompts: Sequence[TokenPrompt], seeds: Sequence[int], spec: SamplingSpec
    ) -> list[list[Trajectory]]:
        calls = [self._sample(prompt, build_params(spec, seed)) for prompt, seed in zip(prompts, seeds, strict=True)]
        return self.builder.build_all(await asyncio.gather(*calls))

    async def submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        for fields in requests:
            task = asyncio.create_task(self._answer(self._mailboxes[client], GenerationRequest(*fields)))
            self._tasks.add(task)  # the event loop keeps weak references only
            task.add_done_callback(self._tasks.discard)

    async def collect(self, client: str, wait_s: float, delay_s: float) -> tuple[list[Generated], list[Rejected]]:
        return await self._mailboxes[client].collect(wait_s, delay_s)

    async def _answer(self, mailbox: Mailbox, request: GenerationRequest) -> None:
        """Sample a response; an error of the request itself rejects it."""
        try:
            reader = self.builder.readers.get(request.tools)
            output = await self._sample(request.prompt, build_params(request.spec, request.seed))
            mailbox.responses.append((request.name, Response.pack(self.builder.build(output.outputs[0], reader))))
        except Exception as error:
            reason = str(error) if isinstance(error, ConfigError) else describe_error(error, 600)
            mailbox.rejected.append((request.name, reason))
        mailbox.arrived.set()

    async def _sample(self, prompt: TokenPrompt, params: Any) -> Any:
        with self._exits_with_engine():
            number, adapter = str(next(self._numbers)), self.adapter
            async for output in self.llm.generate(build_input(prompt), params, number, lora_request=adapter):
                final = output  # the only one
            return final

    @contextlib.contextmanager
    def _exits_with_engine(self) -> Iterator[None]:
        """End this actor if vLLM's engine process died: only the supervisor can restart both."""
        try:
            yield
        except Exception:
            if self.llm.errored:
                logger.exception("vLLM's engine process died; ending this actor")
                os._exit(1)
            raise

    async def load_weights(self, version: int, records: Sequence[WeightRecord], probe: TokenPrompt) -> HeldWeights:
        async with self._updating:
            await self._prepare_update()
            checksums = await self._call(self.load_call, args=(pickle.dumps(records),))
            return await self._finish(version, checksums, probe)

    async def call_workers(self, method: str, arguments: dict[str, Any]) -> None:
        if method == "start_weight_update":
            await self._prepare_update()
            await self._call("watch_transfer")
        await self._call(method, kwargs=arguments)

    async def confirm_weights(self, version: int, sent: Any, probe: TokenPrompt) -> HeldWeights:
        return await self._finish(version, await self._call("transfer_checksum"), probe)

    async def _call(self, method: str, **arguments: Any) -> Any:
        with self._exits_with_engine():
            return await self.llm.collective_rpc(method, **arguments)

    async def _pause(self) -> None:
        with self._exits_with_engine():
            await self.llm.pause_generation(mode="keep", clear_cache=False)

    async def _prepare_update(self) -> None:
        await self._pause()
        await self._wake("weights")

    async def _finish(self, version: int, checksums: Sequence[str], probe: TokenPrompt) -> HeldWeights:
        """Resume with the new weights, and report them."""
        with self._exits_with_engine():
            await self.llm.update_weight_version(str(version))
            await self._wake("kv_cache")
            # Recompute the keys and values of the requests in flight, too.
            await self.llm.reset_prefix_cache(reset_running_requests=True)
            await self.llm.resume_generation()
        output = await self._sample(probe, build_probe_params())
        return HeldWeights(version, list(checksums), read_probe(output, probe))

    async def sleep(self) -> None:
        if self.sleeps and self.asleep != SLEEP_TAGS:
            await self.llm.sleep(level=self.sleep_level, mode="keep")
            self.asleep = set(SLEEP_TAGS)

    async def _wake(self, tag: str) -> None:
        if tag in self.asleep:
            await self.llm.wake_up(tags=[tag])
            self.asleep.remove(tag)
