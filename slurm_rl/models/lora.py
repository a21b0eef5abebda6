"""Low-rank adapters: add them, and merge them into plain weights.

A linear layer q_proj [out, in] becomes peft's

    q_proj.base_layer.weight   [out, in]   frozen
    q_proj.lora_A.default.weight [r, in]   trained, float32
    q_proj.lora_B.default.weight [out, r]  trained, float32; starts as zeros

lora_experts.py has the same for joined experts. Outside this engine the names are those of the plain model, with
`q_proj.lora_A.weight` for an adapter. A reward model's head `score.weight` is trained whole and saved with the
adapters.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slurm_rl.config.model import LoraConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.lora_layers import AdaptedLayers, choose_layers
from slurm_rl.models.published_names import ADAPTER, PEFT_NAME, plain_name
from slurm_rl.models.weight_files import WeightFiles

_HEAD = "score."
_OUR_NAME = re.compile(r"\.lora_(A|B)\.weight$")


def add_adapters(model: Any, config: LoraConfig, seed: int) -> AdaptedLayers:
    """Freeze `model` and add adapters, equal for equal seeds.

    Raises:
        ConfigError: a target is not a linear layer of this model, or peft could not load the export.
    """
    from peft.tuners.lora import Linear

    from slurm_rl.models.lora_experts import add_expert_adapters

    layers = choose_layers(model, config)
    peft_config = _build_peft_config(config, layers.names)
    with torch.random.fork_rng(devices=[]):
        # Built one by one: peft's own injection matches names by suffix, and adapts fused experts of equal names.
        for name in layers.names:
            base = model.get_submodule(name)
            rank, alpha = config.rank_of(name), config.alpha_of(name)
            model.set_submodule(name, Linear(base, ADAPTER, config=peft_config, r=rank, lora_alpha=alpha))
        torch.manual_seed(seed)
        for name in layers.names:
            layer = model.get_submodule(name)
            for adapter in (layer.lora_A, layer.lora_B):
                adapter.to_empty(device="cpu").float()  # peft creates them where, and in the type that, the base is
            layer.reset_lora_parameters(ADAPTER, init_lora_weights=True)
        add_expert_adapters(model, layers.experts, config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(name))
    return layers


def _build_peft_config(config: LoraConfig, names: list[str], **fields: Any) -> Any:
    from peft import LoraConfig as PeftConfig

    patterns = {"rank_pattern": dict(config.rank_pattern), "alpha_pattern": dict(config.alpha_pattern)}
    return PeftConfig(
        r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=names, **patterns, **fields
    )


def is_adapter(name: str) -> bool:
    return PEFT_NAME.search(name) is not None


def is_trained(name: str) -> bool:
    """Return whether it is an adapter, or the head of a reward model."""
    return is_adapter(name) or name.startswith(_HEAD)


@contextlib.contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """Disable the adapters within the block; nothing is copied."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    from slurm_rl.models.lora_experts import AdaptedExperts

    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer | AdaptedExperts)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merge(base: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """Return W + scaling * B A, in float32, rounded once to W's dtype.

    Args: base [out, in], a [r, in], b [out, r], or one of each per expert.
    """
    return (torch.addmm if base.ndim == 2 else torch.baddbmm)(base.float(), b.float(), a.float(), alpha=scaling).to(
        base.dtype
    )


def merge_state(state: Iterable[tuple[str, Tensor]], config: LoraConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain model's tensors from an adapted one's."""
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state:
        plain = plain_name(name)
        layer, part = _OUR_NAME.sub("", plain), name.removesuffix(f".{ADAPTER}.weight").rpartition(".")[2]
        if not is_adapter(name):
            if not (name.endswith(".base_layer.weight") or config.adapts_parameter(plain)):
                yield plain, tensor
                continue
            layer, part = plain.removesuffix(".weight"), "base"
        parts = waiting.setdefault(layer, {})
        parts[part] = tensor
        if len(parts) == 3:
            del waiting[layer]
            scaling = config.scaling_of(layer)
            merged = merge(parts["base"], parts["lora_A"], parts["lora_B"], scaling)
            yield layer if config.adapts_parameter(layer) else f"{layer}.weight", merged


def merge_into_base(
    base: Iterable[tuple[str, Tensor]], adapters: dict[str, Tensor], config: LoraConfig
) -> Iterator[tuple[str, Tensor]]:
    """Yield a plain base's tensors with the adapters (under our names) merged.

    Raises:
        ConfigError: an adapter has no layer in this base.
    """
    layers = {_OUR_NAME.sub("", name) for name in adapters if not name.startswith(_HEAD)}
    heads = {name: tensor for name, tensor in adapters.items() if name.startswith(_HEAD)}
    for name, tensor in base:
        if name in heads:
            continue
        layer = name.removesuffix(".weight")
        if layer in layers:
            layers.remove(layer)
            a, b = (adapters[f"{layer}.lora_{part}.weight"] for part in "AB")
            tensor = merge(tensor, a, b, config.scaling_of(layer))
        yield name, tensor
    yield from heads.items()
    if layers:
        raise ConfigError(
            "the base model must have every layer that has an adapter",
            seen=", ".join(sorted(layers)[:4]),
            action="choose other model.lora.target_modules",
        )


def read_base(path: str | Path, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a model folder or downloaded hub name, file by file."""
    files = WeightFiles(path)
    for name in sorted(files.file_of, key=files.file_of.__getitem__):
        yield name, files.read(name).to(dtype)


def save_adapter(folder: Path, state: dict[str, Tensor], config: LoraConfig, names: list[str], base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json into an existing folder, for peft and vLLM.

    Args:
        state: adapters under our names, and the head of a reward model.
        names: full names of the adapted layers.
    """
    from safetensors.torch import save_file

    heads = ["score"] if any(name.startswith(_HEAD) for name in state) else None
    tensors = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    _build_peft_config(
        config,
        names,
        base_model_name_or_path=base,
        task_type="SEQ_CLS" if heads else "CAUSAL_LM",
        modules_to_save=heads,
        inference_mode=True,
    ).save_pretrained(str(folder))
