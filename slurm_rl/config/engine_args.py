"""Arguments of vLLM's engine that are allowed in `rollout.engine_args`."""

import ast
import difflib
import functools
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from slurm_rl.errors import ConfigError

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


def check_engine_args(names: Iterable[str]) -> None:
    """Look up the arguments in the source of an installed vLLM, since importing it takes 20 s.

    Raises:
        ConfigError: the installed vLLM lacks the argument; names the nearest.
    """
    wanted = list(names)
    known = read_engine_args() if wanted else ()
    for name in wanted:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                "rollout.engine_args must name fields of vLLM's EngineArgs",
                seen=name,
                action=f"did you mean {near[0]}?" if near else "see vllm/engine/arg_utils.py of the installed vLLM",
            )


@functools.cache
def read_engine_args() -> tuple[str, ...]:
    """Return the fields of the installed vLLM's EngineArgs; empty without vLLM."""
    found = importlib.util.find_spec("vllm")  # imports nothing for a top-level name
    if found is None or found.origin is None:
        return ()
    source = Path(found.origin).parent / "engine" / "arg_utils.py"
    if not source.is_file():
        return ()
    classes = [node for node in ast.parse(source.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    fields = next((node.body for node in classes if node.name == "EngineArgs"), [])
    return tuple(n.target.id for n in fields if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name))
