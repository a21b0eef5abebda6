"""vLLM as a rollout engine, one actor per engine of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Completion, SamplingSpec
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.node.heartbeat import beat
from slurm_rl.node.processes import end_life_before
from slurm_rl.plan.memory import cpu_cache_bytes, parse_shape
from slurm_rl.rewards.values import describe_error
from slurm_rl.rollout.packed_reply import PackedReply
from slurm_rl.rollout.reply_request import Refused, Replied, ReplyRequest
from slurm_rl.rollout.reply_server import ReplyAddress, ReplyServer
from slurm_rl.rollout.vllm.continuous import ContinuousEngine
from slurm_rl.rollout.vllm.ended_replies import EndedReplies
from slurm_rl.rollout.vllm.tool_calls import CallReaders, ToolCallReader, read_reply
from slurm_rl.rollout.vllm.vision_inputs import build_input, build_options, check_expanded
from slurm_rl.rollout.weights.weight_record import HeldWeights, WeightRecord
from slurm_rl.run_dir.run_dir import read_json

_SLEEPERS = {"weights", "kv_cache"}
"""What of an engine can be awake alone; the names are vLLM's."""


class VLLMEngine:
    """`RolloutEngine` made of vLLM. Runs as a Ray actor."""

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
            tools: how the model calls them; None where it has none.
            awaits_weights: start with random weights and sample nothing before the policy has sent its own.
        """
        import ray
        from vllm import LLM

        end_life_before()
        self.version, self.awaits_weights = -1, awaits_weights
        self.model_path, self.model = model_path, model
        self.llm = LLM(
            model=model_path,
            dtype=model.dtype,
            trust_remote_code=model.trust_remote_code,
            # Logits in float32, as the policy's are.
            hf_overrides={"head_dtype": "float32"},
            tensor_parallel_size=max(num_gpus, 1),
            max_model_len=max_model_len,
            max_num_seqs=rollout.max_num_seqs,
            enforce_eager=num_gpus == 0 if rollout.enforce_eager is None else rollout.enforce_eager,
            enable_prefix_caching=True,
            # The sampler's own: after penalties, temperature, min_p, top_k and top_p (vLLM's v1/sample/sampler.py, and
            # v1/worker/gpu/sample/sampler.py on GPUs). The policy recomputes its own at the same temperature.
            logprobs_mode="processed_logprobs",
            worker_extension_cls="slurm_rl.rollout.vllm.worker_extension.RolloutWorkerExtension",
            **_memory_options(rollout, num_gpus, _cpu_cache_bytes(model_path, model, rollout, max_model_len)),
            **_transfer_options(rollout),
            **({} if max_images is None else build_options(model, max_images)),
            **_prompt_options(num_gpus),
            **_load_options(awaits_weights) | rollout.engine_args,
        )
        self.sees_images = max_images is not None
        self.sleeps = rollout.colocate and num_gpus > 0
        self.asleep: set[str] = set()
        self.tokenizer = self.llm.get_tokenizer()
        self.tools = None if tools is None else ToolCallReader(tools, self.tokenizer)
        self.readers = CallReaders(self.tokenizer)
        step = self.llm.llm_engine.step

        def beating_step(*args: Any, **kwargs: Any) -> Any:
            beat()  # a token of each completion: how long a whole one takes says nothing
            return step(*args, **kwargs)

        self.llm.llm_engine.step = beating_step
        self.continuous = _build_continuous(self.llm, awaits_weights) if rollout.inflight_weight_updates else None
        self.replies = EndedReplies(self.continuous) if self.continuous is not None else None
        self.server = ReplyServer(self, ray.util.get_node_ip_address()) if self.continuous is not None else None

    def ready(self) -> bool:
        return True

    def generate(
        self, prompts: Sequence[TokenPrompt], seeds: Sequence[int], spec: SamplingSpec
    ) -> list[list[Completion]]:
        """Sample `num_completions` for each prompt, in order."""
        inputs, params = [build_input(prompt) for prompt in prompts], [_sampling_params(spec, seed) for seed in seeds]
        if self.continuous is not None:
            return [
                [self._completion(item, item.versions) for item in group]
                for group in self.continuous.generate(inputs, params)
            ]
        assert not self.awaits_weights, "an engine that was just started must get weights before requests"
        outputs = self.llm.generate(inputs, params, use_tqdm=False)
        check_expanded(prompts, outputs)
        return [
            [self._completion(item, []) for item in sorted(output.outputs, key=lambda item: item.index)]
            for output in outputs
        ]

    def open_replies(self) -> ReplyAddress:
        assert self.server is not None, "asked of engines that take requests at any time"
        return self.server.address()

    def begin_replies(self, client: str, requests: Sequence[ReplyRequest]) -> list[Refused]:
        assert self.replies is not None, "asked of engines that take requests at any time"
        refused, begun = list[Refused](), list[ReplyRequest]()
        inputs, params = list[Any](), list[Any]()
        for request in requests:
            if (why := self.readers.refuse(request.tools)) is not None:
                refused.append((request.episode, why))
                continue
            try:
                made = build_input(request.prompt), _sampling_params(request.spec, request.seed)
            except Exception as error:  # of this request, such as a stop string that vLLM does not take
                refused.append((request.episode, describe_error(error, 600)))
                continue
            begun.append(request)
            inputs.append(made[0])
            params.append(made[1])
        return refused + self.replies.begin(client, begun, inputs, params)

    def take_replies(self, client: str, wait_s: float, linger_s: float) -> list[Replied]:
        assert self.replies is not None, "asked of engines that take requests at any time"
        ended = self.replies.take(client, wait_s, linger_s)
        return [
            (request.episode, PackedReply.of(self._completion(item, item.versions, self.readers.find(request.tools))))
            for request, item in ended
        ]

    def _completion(self, item: Any, versions: list[int], theirs: ToolCallReader | None = None) -> Completion:
        token_ids = list(item.token_ids)
        logprobs = [float(step[token].logprob) for step, token in zip(item.logprobs, token_ids, strict=True)]
        text = self._text(token_ids, item)
        version = versions[0] if versions else self.version
        # Nearly all completions have one version; those need no list.
        mixed = versions if versions and versions[-1] != version else []
        completion = Completion(token_ids, logprobs, text, item.finish_reason == "length", version, mixed)
        reader = theirs or self.tools
        return completion if reader is None else read_reply(reader, completion, item.stop_reason)

    def _text(self, token_ids: list[int], item: Any) -> str:
        """What is scored: without special tokens, and without what stopped it."""
        if isinstance(item.stop_reason, str):
            return str(item.text)  # vLLM's own ends before the string
        # A stop token may be no special one. Of the end-of-text token, which is one, there is no reason.
        seen = token_ids if item.stop_reason is None else token_ids[:-1]
        return str(self.tokenizer.decode(seen, skip_special_tokens=True))

    def load_weights(self, version: int, records: Sequence[WeightRecord], probe: TokenPrompt) -> HeldWeights:
        """Take new weights, or adapters over the base; then say what is held: version, checksums, the probe."""
        return self._take(version, lambda: self._load(records), probe)

    def _load(self, records: Sequence[WeightRecord]) -> list[str]:
        # Weights first, the cache after them: at no moment are both here together with a copy on its way.
        self._wake("weights")
        if self.model.lora is None:
            return list(self.llm.collective_rpc("load_named_weights", args=(records,)))
        base = self.model.init_from or self.model_path
        merging = (records, base, self.model.dtype, self.model.lora.scaling)
        return list(self.llm.collective_rpc("load_adapters", args=merging))

    def call_workers(self, method: str, arguments: dict[str, Any]) -> None:
        """A step of vLLM's weight transfer on every tensor-parallel rank; see transfer.py."""

        starts = method == "start_weight_update"

        def call() -> None:
            if starts:
                self._wake("weights")
                self.llm.collective_rpc("watch_transfer")
            self.llm.collective_rpc(method, kwargs=arguments)

        if self.continuous is None:
            call()
        else:
            # A model that has some of its new weights samples nothing; `confirm_weights` lets it go on.
            self.continuous.run(call, hold=starts)

    def confirm_weights(self, version: int, sent: Any, probe: TokenPrompt) -> HeldWeights:
        """What is held after a transfer; `sent` is there to come after the policy's sending."""

        def load() -> list[str]:
            return list(self.llm.collective_rpc("transfer_checksum"))

        return self._take(version, load, probe)

    def _take(self, version: int, load: Callable[[], list[str]], probe: TokenPrompt) -> HeldWeights:
        from vllm import SamplingParams

        def take() -> list[str]:
            checksums = load()
            if self.sees_images:
                # What the vision tower made of images is of the old weights, and vLLM knows images by their pixels.
                self.llm.llm_engine.reset_encoder_cache()
            self.version, self.awaits_weights = version, False
            if self.continuous is not None:
                self._wake("kv_cache")
            return checksums

        prompt = build_input(probe)
        params = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
        if self.continuous is not None:
            checksums, found = self.continuous.update(version, take, prompt, params)
        else:
            checksums = take()
            self._wake("kv_cache")
            # Cached keys and values belong to the old weights.
            self.llm.reset_prefix_cache()
            found = self.llm.generate([prompt], params, use_tqdm=False)[0].prompt_logprobs
        # Of each token after the first, at temperature 1.
        logprobs = [float(step[token].logprob) for step, token in zip(found[1:], probe.token_ids[1:], strict=True)]
        return HeldWeights(version, checksums, logprobs)

    def sleep(self) -> None:
        """Leave the GPU to the policy: weights and cache go, the next weights bring both back.

        Level 2 keeps no copy of the weights in host memory, since all of them come with the next version. Untested
        without a GPU. Does nothing where the engine has GPUs of its own, or none.
        """
        if self.sleeps and self.asleep != _SLEEPERS:
            if self.continuous is None:
                self.llm.sleep(level=2)
            else:
                self.continuous.run(lambda: self.llm.sleep(level=2))
            self.asleep = set(_SLEEPERS)

    def _wake(self, what: str) -> None:
        if what in self.asleep:
            self.llm.wake_up(tags=[what])
            self.asleep.remove(what)


def _sampling_params(spec: SamplingSpec, seed: int) -> Any:
    """vLLM's, with a seed: its sampler on GPUs draws from no generator of torch's that could be seeded for all."""
    from vllm import SamplingParams

    # Its other fields have vLLM's names.
    fields = asdict(spec) | {"stop": list(spec.stop), "stop_token_ids": list(spec.stop_token_ids)}
    del fields["batch"]
    return SamplingParams(
        n=fields.pop("num_completions"),
        **fields | {"seed": seed},  # completion i of the prompt gets seed + i
        logprobs=0,
        detokenize=bool(spec.stop),  # vLLM looks for the strings in its text
    )


def _build_continuous(llm: Any, held: bool) -> ContinuousEngine:
    from vllm.v1.engine.exceptions import EngineDeadError

    return ContinuousEngine(llm.llm_engine, held=held, dead=(EngineDeadError,))


def _load_options(awaits_weights: bool) -> dict[str, Any]:
    """See random_weights.py; a user's `load_format` takes precedence."""
    return {"load_format": "random_weights"} if awaits_weights else {}


def _prompt_options(num_gpus: int) -> dict[str, Any]:
    """On CPU a prompt is read in one piece: of one that was read in part vLLM winds the request's random numbers back
    (gpu_model_runner.py, _bookkeeping_sync), which no generator of a CPU can."""
    return {} if num_gpus else {"enable_chunked_prefill": False}


def _memory_options(rollout: RolloutConfig, num_gpus: int, cpu_cache_bytes: int) -> dict[str, Any]:
    if num_gpus == 0:
        return {"kv_cache_memory_bytes": cpu_cache_bytes}
    options: dict[str, Any] = {"gpu_memory_utilization": rollout.gpu_memory_utilization}
    if rollout.colocate:
        options["enable_sleep_mode"] = True
    if num_gpus > 1:
        # One process a GPU, children of this actor: its GPUs were chosen by the plan, which Ray knows nothing of.
        options["distributed_executor_backend"] = "mp"
    return options


def _cpu_cache_bytes(model_path: str, model: ModelConfig, rollout: RolloutConfig, max_model_len: int) -> int:
    if rollout.cpu_kv_cache_gb is not None:
        return int(rollout.cpu_kv_cache_gb * 2**30)
    config = Path(model_path) / "config.json"
    return cpu_cache_bytes(
        parse_shape(read_json(config)) if config.is_file() else None,
        num_sequences=rollout.max_num_seqs,
        longest_tokens=max_model_len,
        bytes_per_value=2 if model.dtype == "bfloat16" else 4,
    )


def _transfer_options(rollout: RolloutConfig) -> dict[str, Any]:
    if not rollout.transfers_directly:
        return {}
    from vllm.config.weight_transfer import WeightTransferConfig

    return {"weight_transfer_config": WeightTransferConfig(backend=rollout.weight_transfer)}
