"""Corrections of vLLM's reload, where it would leave an engine with weights of an earlier load.

tests/train/test_vllm_engine.py compares policy and engine after each reload, for each family that needs one.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_COPYING = "GptOssForCausalLM"
"""vLLM model with a `load_weights` that copies experts and attention sinks into the parameters, past their loaders."""
_COPIED = {"w13_weight", "w2_weight", "w13_bias", "w2_bias", "sinks"}


def prepare_reload(model: torch.nn.Module, device: torch.device) -> None:
    """Call before vLLM prepares the model for a reload."""
    if device.type == "cpu":
        _drop_expert_kernels(model)
    if type(model).__name__ == _COPYING:
        _use_plain_loaders(model)


def leave_out_missing_head(
    model: torch.nn.Module, weights: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights without a tied head if vLLM's class has none: Gemma 2 multiplies by its embedding."""
    has_head = any(name.rpartition(".")[2] == "lm_head" for name, _ in model.named_modules())
    return ((name, tensor) for name, tensor in weights if has_head or name != "lm_head.weight")


def _drop_expert_kernels(model: torch.nn.Module) -> None:
    """Make the next reload rebuild the kernels of experts on CPU.

    vLLM packs experts for its CPU kernel only when it builds the kernel (`_setup_kernel` in
    unquantized_fused_moe_method.py); after a plain reload the kernel would read unpacked weights. On GPUs experts are
    not packed, and CUDA graphs hold the kernel's tensors.
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


@contextlib.contextmanager
def copies_loaded(model: torch.nn.Module) -> Iterator[None]:
    """Count copies into parameters as loads while a model is reloaded.

    A reload keeps parameters on the meta device until their loaders have seen all elements (`layerwise.py`), so a copy
    past the loader is lost and the old weights stay.
    """
    with _CopiesAsLoads() if type(model).__name__ == _COPYING else contextlib.nullcontext():
        yield


def _use_plain_loaders(model: torch.nn.Module) -> None:
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    for module in model.modules():
        parameters, _ = get_layerwise_info(module).restore_metadata
        for name in _COPIED & parameters.keys():
            held: Any = parameters[name]
            held.weight_loader, held.is_copied = default_weight_loader, True


class _CopiesAsLoads(TorchFunctionMode):
    """Calls the loader of a parameter on the meta device in place of `copy_` into it."""

    _is_loading = False
    """Shared by nested modes: a transfer's own `load_weights` may run within a reload."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target: Any = args[0] if args else None
        if _CopiesAsLoads._is_loading or not getattr(target, "is_copied", False) or not target.is_meta:
            return func(*args, **(kwargs or {}))
        if getattr(func, "__self__", None) is torch.Tensor.data:
            return target
        if func is not torch.Tensor.copy_:
            return func(*args, **(kwargs or {}))
        _CopiesAsLoads._is_loading = True
        try:
            target.weight_loader(target, args[1])
        finally:
            _CopiesAsLoads._is_loading = False
        return target
