"""GPU-only behaviour of vLLM that our code depends on: each row quotes its source and names our dependent code.

If a row fails, vLLM changed: read the function, then update our code and the row.
"""

import ast

import pytest

from tests.contracts.source import Package
from tests.contracts.uses import our_package

_WORKER = "vllm.v1.worker.gpu_worker:Worker"
_SAMPLER = "vllm.v1.worker.gpu.sample.sampler:Sampler"
_TRANSFER = "vllm.distributed.weight_transfer"

QUOTES = [
    # (module, quoted code, dependent code of ours)
    (
        "vllm.config:VllmConfig.use_v2_model_runner",
        "unsupported = self._get_v2_model_runner_unsupported_features()",
        "with Triton every model uses Model Runner V2; the CPU build has no Triton, so tests here run V1",
    ),
    (
        "vllm.v1.worker.gpu.sample.states:SamplingStates.add_request",
        "seed = sampling_params.seed; self.seeds_set[req_idx] = seed is not None; "
        "if seed is None: seed = np.random.randint(_NP_INT64_MIN, _NP_INT64_MAX); self.seeds.np[req_idx] = seed",
        "without a seed, numpy draws the same one in each engine: engine.py seeds every prompt",
    ),
    (
        "vllm.v1.engine.parallel_sampling:ParentRequest._get_child_sampling_params",
        "child_sampling_params.seed = seed + index",
        "completion i gets the prompt's seed + i: seeds of prompts must differ by more",
    ),
    (
        f"{_SAMPLER}.sample",
        "self.sampling_states.any_explicit_seed(idx_mapping_np)",
        "samplers without seeds (FlashInfer's) are skipped if a request has one",
    ),
    (
        f"{_SAMPLER}.__call__",
        "if self.logprobs_mode in PROCESSED_LOGPROBS_MODES: logits = processed_logits",
        "logprobs are computed after temperature, top_k and top_p, as in the policy",
    ),
    (
        "vllm.sampling_params:_MAX_TEMP",
        "0.01",
        "vLLM raises lower temperatures to this: config/rules/sampling.py refuses them",
    ),
    ("vllm.config.model:PROCESSED_LOGPROBS_MODES", "'processed_logprobs'", "logprobs_mode in engine.py"),
    (
        "vllm.v1.worker.gpu.sample.prompt_logprob:PromptLogprobsWorker.add_request",
        "sampling_params.prompt_logprobs is not None",
        "prompt_logprobs=0 returns the logprob of each token of the probe",
    ),
    (
        "vllm.model_executor.layers.logits_processor:LogitsProcessor._apply_head",
        "torch.mm(flat, lm_head.weight.t(), out_dtype=self.head_dtype)",
        "hf_overrides head_dtype=float32 gives float32 logits of a bfloat16 model on GPUs too",
    ),
    (
        f"{_WORKER}.reload_weights",
        "with set_current_vllm_config(self.vllm_config): self.model_runner.reload_weights(*args, **kwargs)",
        "worker_extension.py calls the worker's method: kernels of some models need the config",
    ),
    (
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.reload_weights",
        "self.reset_lora_state(); self.reset_encoder_cache()",
        "Model Runner V2 reloads too, and drops image features of older weights",
    ),
    (
        f"{_WORKER}.sleep",
        "if level == 2: model = self.model_runner.model",
        "level 2 keeps the buffers, which a weight load does not restore",
    ),
    (
        f"{_WORKER}.sleep",
        "assert freed_bytes >= 0",
        "no other process may allocate GPU memory during sleep(): trainer.py waits for it before training",
    ),
    (
        f"{_WORKER}.wake_up",
        "wake_weights = tags is None or 'weights' in tags",
        "buffers are restored before weights are loaded",
    ),
    (
        "vllm.device_allocator.sleep_mode_backend:CuMemBackend.suspend",
        "if level == 1: offload_tags = ('weights', *offload_tags)",
        "level 2 keeps no copy of the weights in host memory",
    ),
    (
        f"{_WORKER}.load_model",
        "self._maybe_get_memory_pool_context(tag='weights')",
        "vLLM's buffers of adapters sleep and wake with the weights, at level 1 with their values",
    ),
    (
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin.load_lora_model",
        "self.lora_manager = LRUCacheWorkerLoRAManager(",
        "worker_extension.py takes the manager of either model runner",
    ),
    (
        "vllm.lora.layers.base_linear:BaseLinearLayerWithLoRA.set_lora",
        "if self.tp_size > 1: lora_a = self.slice_lora_a(lora_a) lora_b = self.slice_lora_b(lora_b)",
        "adapters.py gives each tensor-parallel rank the whole adapter, of which the rank takes its part",
    ),
    (
        "vllm.lora.layers.column_parallel_linear:MergedColumnParallelLinearWithLoRA.set_lora",
        "if self.tp_size > 1: lora_a = self.slice_lora_a(lora_a) lora_b = self.slice_lora_b(lora_b)",
        "the same for joined layers",
    ),
    (
        "vllm.device_allocator:DEFERRABLE_TAGS",
        "('weights', 'kv_cache')",
        "other memory (workspaces, CUDA graphs) returns with the first tag that is woken",
    ),
    (
        "vllm.v1.engine.core:EngineCore.wake_up",
        "if fully_awake: self.resume_scheduler()",
        "sampling resumes after both tags are awake, without a third call",
    ),
    (
        "vllm.v1.executor.abstract:Executor.sleep",
        "if 'weights' in self.sleeping_tags:",
        "an engine with only its weights awake can sleep again",
    ),
    (
        "vllm.utils.mem_utils:memory_profiling",
        "result.total_consumed = result.before_create.free_memory - result.after_profile.free_memory",
        "allocations of other processes count as the engine's: run_grpo.py starts a colocated engine first",
    ),
    (
        f"{_WORKER}.determine_available_memory",
        "assert init_free_memory >= free_gpu_memory",
        "memory freed by other processes makes the start fail",
    ),
    (
        "vllm.v1.core.sched.scheduler:Scheduler.reset_prefix_cache",
        "self._preempt_request(request, timestamp, drop_stale_output=True)",
        "on GPUs a step is in flight while weights change: its tokens are dropped, so token versions are right",
    ),
    (
        "vllm.platforms.cpu:CpuPlatform.check_and_update_config",
        "scheduler_config.async_scheduling = False",
        "the CPU build has no step in flight, so continuous.py is tested without one",
    ),
    (
        f"{_TRANSFER}.nccl_engine:NCCLTrainerWeightTransferEngine.trainer_init",
        "rank_offset=1",
        "transfer.py replaces the sender's rank offset for each engine",
    ),
    (
        f"{_TRANSFER}.nccl_common:worker_init_process_group",
        "rank = worker_rank + init_info.rank_offset",
        "ranks of an engine follow its offset",
    ),
    (
        f"{_TRANSFER}.nccl_engine:NCCLTrainerWeightTransferEngine._checked_iter",
        "tuple(tensor.shape) != expected.shape",
        "the source's shapes are tuples, and its dtypes those of the tensors",
    ),
    (
        f"{_TRANSFER}.packed_tensor:packed_ipc_producer",
        "if flat.numel() > buffer_size_bytes: raise ValueError(",
        "the buffer for ipc is at least as large as the largest tensor",
    ),
    (
        f"{_TRANSFER}.nccl_engine:NCCLWeightTransferEngine.receive_weights",
        "post_unpack_func=self.model.load_weights",
        "received tensors pass through the model's load_weights, where worker_extension.py adds the checksum",
    ),
    (
        f"{_TRANSFER}.ipc_engine:IPCWeightTransferEngine.receive_weights",
        "self.model.load_weights(weights)",
        "the same for ipc",
    ),
    (
        f"{_TRANSFER}.base:WeightTransferEngine.update_weights",
        "self.receive_weights(typed_update_info) torch.accelerator.synchronize()",
        "checksums computed on several streams are complete when read",
    ),
    (
        f"{_TRANSFER}.packed_tensor:packed_nccl_broadcast_producer",
        "streams = _get_streams(",
        "tensors are packed on separate streams: the policy synchronizes its kernels first",
    ),
    (
        "vllm.platforms.cuda:NvmlCudaPlatform.device_control_id_to_physical_device_id",
        "handle = pynvml.nvmlDeviceGetHandleByUUID(device_id)",
        "an actor's mask may contain full UUIDs of NVIDIA GPUs",
    ),
    (
        "vllm.platforms.interface:Platform.device_control_id_to_physical_device_id",
        "return int(device_id)",
        "but only indices of AMD GPUs: visibility.py converts UUIDs",
    ),
    (
        "vllm.platforms.rocm:_sync_hip_cuda_env_vars",
        "if hip_val != cuda_val: raise ValueError(",
        "on AMD only HIP's variable may hold an actor's mask",
    ),
]


def plain(text: str) -> str:
    """Collapse whitespace."""
    return " ".join(text.replace("; ", " ").split())


@pytest.mark.parametrize(("name", "sentence", "rests"), QUOTES, ids=[row[0].rpartition(":")[2] for row in QUOTES])
def test_source_contains_expected_code(vllm: Package, name: str, sentence: str, rests: str) -> None:
    text = plain(ast.unparse(vllm.get(name).node))
    assert plain(sentence) in text, f"{name} no longer says `{sentence}`. On it rests: {rests}. It says: {text[:3000]}"


def test_packing_streams_do_not_wait_for_policy_stream(vllm: Package) -> None:
    """If they do, weight_sender.py need not synchronize."""
    assert "wait_stream" not in ast.unparse(vllm.tree(f"{_TRANSFER}.packed_tensor") or ast.Pass())


def test_sleep_tags_match_wake_tags(vllm: Package) -> None:
    tags = vllm.get("vllm.v1.executor.abstract:SLEEP_TAGS").node
    our_tags = our_package().get("slurm_rl.rollout.vllm.engine:SLEEP_TAGS").node
    assert isinstance(tags, ast.Assign) and isinstance(tags.value, ast.Call) and isinstance(our_tags, ast.Assign)
    assert set(ast.literal_eval(tags.value.args[0])) == ast.literal_eval(our_tags.value)


def test_requested_features_work_in_model_runner_v2(vllm: Package) -> None:
    """A new condition there may affect us: engines would then use V1 on GPUs, with other seeds and memory."""
    function = vllm.get("vllm.config:VllmConfig._get_v2_model_runner_unsupported_features").node
    reasons = [
        ast.unparse(node.args[0])
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "unsupported.append"
    ]
    about = ("external_launcher", "speculative method", "parallel drafting", "draft models")
    assert reasons and [reason for reason in reasons if not any(word in reason for word in about)] == []


def test_named_backends_are_registered(vllm: Package) -> None:
    text = ast.unparse(vllm.tree(f"{_TRANSFER}.factory") or ast.Pass())
    for backend in ("nccl", "ipc"):
        for factory in ("WeightTransferEngineFactory", "WeightTransferTrainerFactory"):
            assert f"{factory}.register_engine('{backend}'" in text
    assert "'gloo'" not in text, "vLLM has a gloo of its own now: gloo_transfer.py may go"
