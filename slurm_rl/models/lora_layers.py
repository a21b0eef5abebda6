"""Choose the linear layers and joined experts that get low-rank adapters. Routers get none."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.errors import ConfigError


@dataclass(frozen=True)
class AdaptedLayers:
    """Layers with adapters, and the matrices without."""

    names: list[str]
    """Full names of linear layers."""
    experts: list[str]
    """Full names of joined experts."""
    share: float
    """Share of the matrices' parameters, embeddings and output head aside, that have an adapter."""
    left_out: list[str]
    """Last parts of the names of the other matrices, such as a mixture's fused experts."""

    @property
    def kinds(self) -> list[str]:
        return sorted({_last(name) for name in self.names})


def choose_layers(model: Any, config: LoraConfig) -> AdaptedLayers:
    """Return the layers to adapt; raise ConfigError if a target is not a linear layer of this model."""
    from slurm_rl.models.lora_experts import choose_experts

    head = model.get_output_embeddings() or getattr(model, "score", None)
    modules = dict(model.named_modules())
    # The head is left out: it may share its weights with the embedding, and it is never run as a layer here.
    linear = {n: m for n, m in modules.items() if m is not head and _is_linear(m) and not _is_read_directly(modules, n)}
    kinds = {_last(name) for name in linear}
    wanted = config.choose_targets(kinds, type(model).__name__)
    chosen = {name: module for name, module in linear.items() if _last(name) in wanted}
    experts = choose_experts(model, config)
    for pattern in {**config.rank_pattern, **config.alpha_pattern}:
        if not any(LoraConfig(rank_pattern={pattern: 2}, rank=1).rank_of(name) == 2 for name in [*chosen, *experts]):
            raise ConfigError(
                "model.lora.rank_pattern and alpha_pattern must name layers with an adapter",
                seen=pattern,
                action=f"choose from {', '.join(sorted(wanted))}, or write a regular expression of a layer's full name",
            )
    if config.export == "adapter":
        _require_loadable(model, list(chosen))
    return _measure_layers(model, chosen, experts, head)


def _measure_layers(model: Any, chosen: dict[str, Any], experts: list[str], head: Any) -> AdaptedLayers:
    adapted = {*(module.weight for module in chosen.values()), *map(model.get_parameter, experts)}
    outside = {m.weight for m in model.modules() if isinstance(m, nn.Embedding) or m is head}
    matrices = {name: p for name, p in model.named_parameters() if p.ndim >= 2 and p not in outside}
    others = {name for name, parameter in matrices.items() if parameter not in adapted}
    total = sum(parameter.numel() for parameter in matrices.values())
    share = sum(parameter.numel() for parameter in adapted) / total
    left_out = sorted({".".join(name.removesuffix(".weight").split(".")[-2:]) for name in others})
    return AdaptedLayers(list(chosen), experts, share, left_out)


def _is_linear(module: nn.Module) -> bool:
    """Return whether `module` computes x W^T + b; routers subclass nn.Linear and compute more."""
    if not isinstance(module, nn.Linear):
        return False
    if type(module).forward is nn.Linear.forward:
        return True
    # Subclasses are tried on a small stand-in, since the module's own weights may be on the meta device.
    plain, x = nn.utils.skip_init(nn.Linear, 3, 2), torch.ones(1, 3)
    try:
        with torch.no_grad():
            plain.weight.copy_(torch.arange(6.0).view(2, 3))
            plain.bias.fill_(1.0)
            return torch.equal(type(module).forward(plain, x), plain(x))  # exact: these are small integers
    except (AttributeError, RuntimeError, TypeError, ValueError):  # it needs more than a weight and a bias
        return False


def _is_read_directly(modules: dict[str, Any], name: str) -> bool:
    """Return whether a state-space mixer or LongCat's router reads this layer's weight, which bypasses an adapter."""
    if name.endswith(".router.classifier"):
        return True
    mixer = modules[name.rpartition(".")[0]]
    return hasattr(mixer, "A_log") and hasattr(mixer, "D") and _last(name) != "in_proj"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def check_targets(model_path: str, config: ModelConfig, *, are_sent: bool) -> AdaptedLayers | None:
    """Return the layers to adapt in the model of this folder, without its weights; None without model.lora.

    Args:
        are_sent: engines get the adapters under the names that the layers have in the base's files.
    """
    from slurm_rl.models.load_model import build_empty
    from slurm_rl.models.published_names import name_layers_in_files
    from slurm_rl.models.weight_files import WeightFiles

    if config.lora is None:
        return None
    model = build_empty(model_path, config)
    layers = choose_layers(model, config.lora)
    if are_sent:
        files = WeightFiles(config.init_from or model_path)
        name_layers_in_files(model, model.state_dict(), layers.names, files.file_of)
    return layers


def _require_loadable(model: Any, names: list[str]) -> None:
    """Refuse an adapter that peft would load elsewhere: in some mixtures it takes gate_proj for the fused experts."""
    from peft import LoraConfig as PeftConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    loaded = PeftConfig(target_modules=names)
    convert_peft_config_for_transformers(loaded, model, None)
    if lost := sorted({_last(name) for name in set(names) - set(loaded.target_modules)}):
        raise ConfigError(
            "model.lora.export=adapter needs layer names that peft can resolve; in this mixture of experts peft "
            "takes these names for experts",
            seen=", ".join(lost),
            action="set model.lora.export=merged, or leave them out of model.lora.target_modules",
        )
