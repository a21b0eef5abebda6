"""Low-rank adapters: which layers get them, and how they become weights again.

peft puts them into the model in place, so a layer q_proj [out, in] is then

    q_proj.base_layer.weight   [out, in]   frozen
    q_proj.lora_A.default.weight [r, in]   trained, float32
    q_proj.lora_B.default.weight [out, r]  trained, float32; zeros at first

and outside this engine the names are those of the plain model, with `q_proj.lora_A.weight` for an adapter. The head
`score.weight` of a reward model is new, so it is trained whole with the adapters and goes where they go.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.run_dir import read_json

_ADAPTER = "default"
_PEFT_NAME = re.compile(rf"\.lora_(A|B)\.{_ADAPTER}\.weight$")
_HEAD = "score."
_OUR_NAME = re.compile(r"\.lora_(A|B)\.weight$")


def add_adapters(model: Any, config: LoraConfig, seed: int) -> list[str]:
    """Freeze `model` and put adapters into it; equal seeds give equal adapters, whatever the rank drew before.

    Returns:
        The targets, as `choose_targets` says.

    Raises:
        ConfigError: a target is no linear layer of this model.
    """
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    targets = choose_targets(model, config)
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(
            PeftConfig(r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=targets),
            model,
            adapter_name=_ADAPTER,
        )
        torch.manual_seed(seed)
        for layer in (module for module in model.modules() if isinstance(module, LoraLayer)):
            # In an empty model peft has put them on the meta device, too.
            layer.lora_A.to_empty(device="cpu")
            layer.lora_B.to_empty(device="cpu")
            layer.reset_lora_parameters(_ADAPTER, init_lora_weights=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(name))
    return targets


def choose_targets(model: Any, config: LoraConfig) -> list[str]:
    """Last parts of the names of the layers to adapt.

    Raises:
        ConfigError: a target is no linear layer of this model; the message names those that are.
    """
    head = model.get_output_embeddings() or getattr(model, "score", None)
    # The head is left out: it may share its weights with the embedding, and it is never run as a layer here.
    linear = {n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}
    wanted = sorted(linear) if config.target_modules == "all-linear" else list(config.target_modules)
    unknown = [name for name in wanted if name not in linear]
    if unknown:
        raise ConfigError(
            "model.lora.target_modules must name linear layers of the model other than its output head",
            seen=", ".join(unknown),
            action=f"choose of {', '.join(sorted(linear))}, or all-linear",
        )
    return wanted


def check_targets(model_path: str, config: ModelConfig) -> None:
    """Raise ConfigError for targets that the model of this folder has not, without reading its weights."""
    from transformers import AutoConfig

    from slurm_rl.engine.load_model import model_class

    if config.lora is None:
        return
    architecture = AutoConfig.from_pretrained(model_path, trust_remote_code=config.trust_remote_code)
    with torch.device("meta"):
        model = model_class(architecture).from_config(architecture, trust_remote_code=config.trust_remote_code)
    choose_targets(model, config.lora)


def is_adapter(name: str) -> bool:
    """Whether a name of the engine's state dict is of an adapter."""
    return _PEFT_NAME.search(name) is not None


def is_trained(name: str) -> bool:
    """Whether it is of an adapter, or of the head of a reward model."""
    return is_adapter(name) or name.startswith(_HEAD)


def plain_name(name: str) -> str:
    """The plain model's name of a tensor of the engine's state dict.

    >>> plain_name("q_proj.base_layer.weight"), plain_name("q_proj.lora_A.default.weight")
    ('q_proj.weight', 'q_proj.lora_A.weight')
    """
    return _PEFT_NAME.sub(r".lora_\1.weight", name.replace(".base_layer.", "."))


@contextlib.contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """Let the model compute what its base would; nothing is copied."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merge(base: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """W + scaling * B A, computed in float32 and rounded once to the type of W.

    Args:
        base: [out, in].
        a: [r, in].
        b: [out, r].
    """
    return torch.addmm(base.float(), b.float(), a.float(), alpha=scaling).to(base.dtype)


def merge_state(state: Iterable[tuple[str, Tensor]], scaling: float) -> Iterator[tuple[str, Tensor]]:
    """The plain model's tensors out of those of an adapted one, in any order that keeps a layer's together."""
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state:
        found = re.fullmatch(rf"(.*)\.(base_layer|lora_A\.{_ADAPTER}|lora_B\.{_ADAPTER})\.weight", name)
        if found is None:
            yield plain_name(name), tensor
            continue
        layer, part = found.groups()
        parts = waiting.setdefault(layer, {})
        parts[part.partition(".")[0]] = tensor
        if len(parts) == 3:
            del waiting[layer]
            yield f"{layer}.weight", merge(parts["base_layer"], parts["lora_A"], parts["lora_B"], scaling)


def merge_into_base(
    base: Iterable[tuple[str, Tensor]], adapters: dict[str, Tensor], scaling: float, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """The same from a plain base and what was trained, under our names; each product is made on `device`.

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
            a, b = (adapters[f"{layer}.lora_{part}.weight"].to(device) for part in "AB")
            tensor = merge(tensor.to(device), a, b, scaling)
        yield name, tensor
    yield from heads.items()
    if layers:
        raise ConfigError(
            "the base must have every layer that has an adapter",
            seen=", ".join(sorted(layers)[:4]),
            action="name other model.lora.target_modules",
        )


def read_base(path: str | Path, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model folder or downloaded hub name, mapped rather than read, one after the other."""
    from safetensors import safe_open

    folder = Path(path)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(str(path), local_files_only=True))
    index = folder / "model.safetensors.index.json"
    # With an index its files are the model; other files of the folder may be the same weights in another form.
    files = set(read_json(index)["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    for file in sorted(files):
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                yield name, opened.get_tensor(name).to(dtype)


def save_adapter(folder: Path, state: dict[str, Tensor], config: LoraConfig, targets: list[str], base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json into an existing folder, for peft and vLLM.

    Args:
        state: adapters under our names, and the head of a reward model.
    """
    from peft import LoraConfig as PeftConfig
    from safetensors.torch import save_file

    heads = ["score"] if any(name.startswith(_HEAD) for name in state) else None
    tensors = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=0.0,
        target_modules=targets,
        base_model_name_or_path=base,
        task_type="SEQ_CLS" if heads else "CAUSAL_LM",
        modules_to_save=heads,
        inference_mode=True,
    ).save_pretrained(str(folder))
