"""Swap the policy's LoRA adapter in vLLM's memory: no files, and the base weights stay.

Every request uses the same adapter, `REQUEST`. A swap changes all of its tensors at once, between two steps of the
engine, so requests in flight continue with the new version as they do after a load of whole weights; the engine then
drops the keys and values of the old version.
"""

from typing import Any

from torch import Tensor
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest

from slurm_rl.config.model import MAX_LORA_RANKS, LoraConfig
from slurm_rl.errors import WeightSyncError

REQUEST = LoRARequest("policy", 1, "in memory")
"""vLLM reads the path only for an adapter that it does not hold."""


def build_adapter_args(lora: LoraConfig) -> dict[str, Any]:
    """Return the arguments of an engine that holds one adapter."""
    targets = None if lora.target_modules == "all-linear" else list(lora.target_modules)
    rank = min(rank for rank in MAX_LORA_RANKS if rank >= lora.max_rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank, "lora_target_modules": targets}


def swap_adapter(worker_manager: Any, tensors: dict[str, Tensor]) -> None:
    """Replace the adapter.

    Args:
        worker_manager: the worker's `LRUCacheWorkerLoRAManager`.
        tensors: A and scaled B, under the names in the base's files.

    Raises:
        WeightSyncError: the engine has no layer for some of them.
    """
    manager = worker_manager._adapter_manager
    mapper, skipped = (getattr(manager.model, name, None) for name in ("hf_to_vllm_mapper", "lora_skip_prefixes"))
    adapter = LoRAModel.from_lora_tensors(
        REQUEST.lora_int_id,
        {f"base_model.model.{name}": tensor for name, tensor in tensors.items()},
        PEFTHelper(r=1, lora_alpha=1, target_modules=[]),  # the scale is in B, and the ranks are in the shapes
        device="cpu",
        dtype=worker_manager.lora_config.lora_dtype,
        weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
        skip_prefixes=skipped,
    )
    manager.remove_adapter(adapter.id)
    manager.add_adapter(adapter)  # packs the parts of joined layers, such as q, k and v
    manager.activate_adapter(adapter.id)
    if missing := sorted(set(adapter.loras) - set(manager.modules)):
        raise WeightSyncError(
            "the engine must have every layer that has an adapter",
            seen=f"{', '.join(missing[:4])} of {type(manager.model).__name__} are not there",
            action="send merged weights: rollout.weight_transfer=ray, or nccl or ipc on GPUs",
        )
