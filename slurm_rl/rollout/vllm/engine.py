"""The engine of synchronous runs: vLLM in the process of its Ray actor.

It is not vLLM's `AsyncLLM`, for three reasons. Ray runs the calls of an asynchronous actor in any order, but a
synchronous run repeats bit for bit only if requests and weights keep their order. AsyncLLM's engine is a child process,
which takes 17 s of CPU time and 460 MB more to start. And all weights would have to be copied to it through a socket.
"""

from collections.abc import Sequence
from typing import Any

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import SamplingSpec, Trajectory
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.node.processes import end_life_before
from slurm_rl.rollout.vllm.engine_args import build_engine_args
from slurm_rl.rollout.vllm.outputs import (
    CompletionBuilder,
    beat_with_output,
    build_params,
    build_probe_params,
    read_probe,
)
from slurm_rl.rollout.vllm.vision_inputs import build_input, check_expanded
from slurm_rl.rollout.weights.weight_record import HeldWeights, WeightRecord

SLEEP_TAGS = {"weights", "kv_cache"}
"""vLLM's names of the parts that sleep and wake separately."""


class VLLMEngine:
    """`RolloutEngine` around vLLM's `LLM`; runs as a Ray actor that executes one call at a time."""

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
        """Start vLLM.

        Args:
            max_images: most images of one prompt; None for a text model.
            tools: syntax of the model's tool calls; None without tools.
            awaits_weights: start with random weights and reject requests until the policy's arrive.
        """
        from vllm import LLM

        end_life_before()
        self.load_call, self.adapter = choose_load(rollout)
        # Level 2 keeps no copy of the weights in host memory: all of them come with the next version.
        self.sleep_level = 2 if self.adapter is None else 1
        self.awaits_weights, self.sees_images = awaits_weights, max_images is not None
        self.llm = LLM(
            **build_engine_args(model_path, model, rollout, max_model_len, num_gpus, max_images, awaits_weights)
        )
        self.llm.llm_engine.set_weight_version("-1")
        self.sleeps, self.asleep = rollout.colocate and num_gpus > 0, set[str]()
        self.builder = CompletionBuilder(self.llm.get_tokenizer(), tools)
        beat_with_output(self.llm.llm_engine.output_processor)

    def ready(self) -> bool:
        return True

    def generate(
        self, prompts: Sequence[TokenPrompt], seeds: Sequence[int], spec: SamplingSpec
    ) -> list[list[Trajectory]]:
        assert not self.awaits_weights, "an engine that was just started must get weights before requests"
        params = [build_params(spec, seed) for seed in seeds]
        outputs = self._sample([build_input(prompt) for prompt in prompts], params)
        check_expanded(prompts, outputs)
        return self.builder.build_all(outputs)

    def load_weights(self, version: int, records: Sequence[WeightRecord], probe: TokenPrompt) -> HeldWeights:
        # Weights first, the KV cache afterwards: both never coexist with a copy of the weights in transfer.
        self._wake("weights")
        return self._finish(version, self.llm.collective_rpc(self.load_call, args=(records,)), probe)

    def call_workers(self, method: str, arguments: dict[str, Any]) -> None:
        if method == "start_weight_update":
            self._wake("weights")
            self.llm.collective_rpc("watch_transfer")
        self.llm.collective_rpc(method, kwargs=arguments)

    def confirm_weights(self, version: int, sent: Any, probe: TokenPrompt) -> HeldWeights:
        return self._finish(version, self.llm.collective_rpc("transfer_checksum"), probe)

    def _finish(self, version: int, checksums: Sequence[str], probe: TokenPrompt) -> HeldWeights:
        """Use the new weights from here on, and report them."""
        if self.sees_images:
            # vLLM caches the vision tower's output by the image's pixels, not by the weights.
            self.llm.llm_engine.reset_encoder_cache()
        self.llm.llm_engine.set_weight_version(str(version))
        self.awaits_weights = False
        self._wake("kv_cache")
        self.llm.reset_prefix_cache()
        [output] = self._sample([build_input(probe)], build_probe_params())
        return HeldWeights(version, list(checksums), read_probe(output, probe))

    def _sample(self, inputs: Sequence[Any], params: Any) -> Any:
        return self.llm.generate(inputs, params, use_tqdm=False, lora_request=self.adapter)

    def sleep(self) -> None:
        if self.sleeps and self.asleep != SLEEP_TAGS:
            self.llm.sleep(level=self.sleep_level)
            self.asleep = set(SLEEP_TAGS)

    def _wake(self, tag: str) -> None:
        if tag in self.asleep:
            self.llm.wake_up(tags=[tag])
            self.asleep.remove(tag)


def choose_load(rollout: RolloutConfig) -> tuple[str, Any]:
    """Return the method of the worker extension that loads weight records, and the adapter of each request."""
    if rollout.weight_transfer != "adapters":
        return "load_named_weights", None
    from slurm_rl.rollout.vllm.adapters import REQUEST

    return "load_adapters", REQUEST
