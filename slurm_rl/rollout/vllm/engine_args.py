"""vLLM's arguments for a rollout engine."""

from pathlib import Path
from typing import Any

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.models.rope import build_overrides
from slurm_rl.plan.memory import cpu_cache_bytes
from slurm_rl.plan.parse_shape import parse_shape
from slurm_rl.rollout.vllm.vision_inputs import build_options
from slurm_rl.run_dir.run_dir import read_json


def build_engine_args(
    model_path: str,
    model: ModelConfig,
    rollout: RolloutConfig,
    max_model_len: int,
    num_gpus: int,
    max_images: int | None,
    awaits_weights: bool,
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `LLM` and `AsyncEngineArgs`. `rollout.engine_args` take precedence."""
    return {
        "model": model_path,
        "dtype": model.dtype,
        "trust_remote_code": model.trust_remote_code,
        # Logits in float32, as in the policy.
        "hf_overrides": {"head_dtype": "float32", **build_overrides(model_path, model)},
        "tensor_parallel_size": max(num_gpus, 1),
        "max_model_len": max_model_len,
        "max_num_seqs": rollout.max_num_seqs,
        "enforce_eager": num_gpus == 0 if rollout.enforce_eager is None else rollout.enforce_eager,
        "enable_prefix_caching": True,
        # After penalties, temperature, min_p, top_k and top_p; the policy computes its own at the same temperature.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "slurm_rl.rollout.vllm.worker_extension.RolloutWorkerExtension",
        **_memory_args(model_path, model, rollout, max_model_len, num_gpus),
        **_transfer_args(rollout),
        **({} if max_images is None else build_options(model, max_images)),
        **({} if num_gpus else _cpu_args(model_path)),
        **_loading_args(model, rollout, awaits_weights),
        **rollout.engine_args,
    }


_STATE_KEYS = ("linear_", "mamba_", "ssm_", "conv_", "state_size")
"""Starts of the keys in the config.json of models with recurrent states."""


def _cpu_args(model_path: str) -> dict[str, Any]:
    # vLLM rewinds the random state of a request if it reads the prompt in parts, which fails on CPU
    # (gpu_model_runner.py, _bookkeeping_sync): read prompts in one piece there.
    args: dict[str, Any] = {"enable_chunked_prefill": False}
    config = Path(model_path) / "config.json"
    tree = read_json(config) if config.is_file() else {}
    if tree.get("kv_lora_rank"):
        # vLLM's CPU kernel for rotary embeddings is wrong for multi-head latent attention: logprobs differ by 0.05.
        args["compilation_config"] = {"custom_ops": ["-rotary_embedding"]}
        # Its kernel for AMX, which vLLM prefers, needs bfloat16.
        args["attention_backend"] = "CPU_MLA"
    if any(key.startswith(_STATE_KEYS) for key in tree.get("text_config") or tree):
        # vLLM caches prefixes of linear attention and state spaces only if it reads prompts in parts.
        args["enable_prefix_caching"] = False
    return args


def _memory_args(
    model_path: str, model: ModelConfig, rollout: RolloutConfig, max_model_len: int, num_gpus: int
) -> dict[str, Any]:
    if num_gpus == 0:
        return {"kv_cache_memory_bytes": _cpu_cache_bytes(model_path, model, rollout, max_model_len)}
    args: dict[str, Any] = {"gpu_memory_utilization": rollout.gpu_memory_utilization}
    if rollout.colocate:
        args["enable_sleep_mode"] = True
    if num_gpus > 1:
        # One child process per GPU: the plan chose this actor's GPUs, and Ray does not manage them.
        args["distributed_executor_backend"] = "mp"
    return args


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


def _loading_args(model: ModelConfig, rollout: RolloutConfig, awaits_weights: bool) -> dict[str, Any]:
    """Return the source of the weights at the start, and the support for adapters."""
    if rollout.weight_transfer != "adapters":
        return {"load_format": "random_weights"} if awaits_weights else {}
    from slurm_rl.rollout.vllm.adapters import build_adapter_args

    assert model.lora is not None, "the plan was checked: weight_transfer=adapters has model.lora"
    base = {"load_format": "base_weights", "model_loader_extra_config": {"folder": model.init_from}}
    return {**build_adapter_args(model.lora), **(base if model.init_from else {})}


def _transfer_args(rollout: RolloutConfig) -> dict[str, Any]:
    if not rollout.transfers_directly:
        return {}
    from vllm.config.weight_transfer import WeightTransferConfig

    return {"weight_transfer_config": WeightTransferConfig(backend=rollout.weight_transfer)}
