"""Arguments of vLLM that are allowed in `rollout.engine_args` and `reward.judge.server.vllm_args`."""

import ast
import functools
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from slurm_rl.errors import ConfigError, find_near

# Arguments that the rollout engine sets or the plan does not support -> the key that controls them.
OURS = {
    "model": "model.path",
    "tokenizer": "model.path",
    "dtype": "model.dtype",
    "hf_overrides": "model.rope_scaling",
    "trust_remote_code": "model.trust_remote_code",
    "tensor_parallel_size": "rollout.tensor_parallel_size",
    "pipeline_parallel_size": "rollout.tensor_parallel_size",
    "data_parallel_size": "rollout.num_engines",
    "max_model_len": "data.max_prompt_tokens and rollout.max_tokens",
    "max_num_seqs": "rollout.max_num_seqs",
    "enforce_eager": "rollout.enforce_eager",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "kv_cache_memory_bytes": "rollout.cpu_kv_cache_gb",
    "enable_sleep_mode": "rollout.colocate",
    "weight_transfer_config": "rollout.weight_transfer",
    "enable_lora": "model.lora",
    "max_loras": "model.lora",
    "max_lora_rank": "model.lora.rank",
    "lora_target_modules": "model.lora.target_modules",
    "mm_processor_kwargs": "model.min_pixels and model.max_pixels",
    "limit_mm_per_prompt": None,
    "distributed_executor_backend": None,
    "enable_prefix_caching": None,
    "enable_chunked_prefill": None,
    "logprobs_mode": None,
    "seed": None,
    "skip_tokenizer_init": None,
    "worker_extension_cls": None,
}


def check_not_ours(names: Iterable[str]) -> None:
    """Raise ValueError for an argument that other keys control."""
    for name in names:
        if name in OURS:
            key = OURS[name]
            raise ValueError(
                f"rollout.engine_args must not have arguments that other keys set; got {name}. "
                + (f"Next: set {key}" if key else "Next: leave it out, slurm_rl depends on its value")
            )


ENGINE: Final = {"vllm/engine/arg_utils.py": ("EngineArgs",)}
"""Files of vLLM with the classes whose fields are arguments of an engine."""
SERVER: Final = {**ENGINE, "vllm/entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs")}
"""Likewise for `vllm serve`."""


def check_engine_args(
    names: Iterable[str], key: str = "rollout.engine_args", sources: Mapping[str, tuple[str, ...]] = ENGINE
) -> None:
    """Look up the arguments in the source of an installed vLLM, since importing it takes 20 s.

    Raises:
        ConfigError: the installed vLLM lacks the argument; names the nearest.
    """
    wanted = list(names)
    known = [name for file, classes in sources.items() for name in read_fields(file, classes)] if wanted else []
    for name in wanted:
        if known and name not in known:
            near = find_near(name, known)
            raise ConfigError(
                f"{key} must name fields of vLLM's {' or '.join(one for names in sources.values() for one in names)}",
                seen=name,
                action=f"did you mean {near}?" if near else f"see {', '.join(sources)} where vLLM is installed",
            )


@functools.cache
def read_fields(file: str, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields of classes of the installed vLLM; empty without vLLM."""
    found = importlib.util.find_spec("vllm")  # imports nothing for a top-level name
    if found is None or found.origin is None:
        return ()
    source = Path(found.origin).parents[1] / file
    if not source.is_file():
        return ()
    bodies = [
        node.body
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name in classes
    ]
    fields = [one.target for body in bodies for one in body if isinstance(one, ast.AnnAssign)]
    return tuple(target.id for target in fields if isinstance(target, ast.Name))
