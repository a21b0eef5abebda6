"""Low-rank adapters of joined experts, which are parameters [experts, ...] and no linear layers.

    experts.gate_up_proj                         [experts, out, in]  becomes
    experts.base_layer.gate_up_proj              frozen
    experts.gate_up_proj.lora_A.default.weight   [experts, r, in]    trained, float32
    experts.gate_up_proj.lora_B.default.weight   [experts, out, r]   trained, float32; starts as zeros

The forward pass adds each product to its parameter, so a layer's experts exist twice meanwhile. peft's own wrapper for
parameters is nested if a module has several, and then their names do not tell which adapter belongs to which.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from slurm_rl.config.model import LoraConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.published_names import ADAPTER


class _Matrices(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape, device="cpu"))


class _Product(nn.Module):
    def __init__(self, shape: torch.Size, rank: int, scaling: float) -> None:
        super().__init__()
        experts, rows, columns = shape
        self.lora_A = nn.ModuleDict({ADAPTER: _Matrices(experts, rank, columns)})
        self.lora_B = nn.ModuleDict({ADAPTER: _Matrices(experts, rows, rank)})
        self.scaling = scaling

    def add_to(self, base: Tensor) -> Tensor:
        a, b = (part[ADAPTER].weight.to(base.dtype) for part in (self.lora_A, self.lora_B))
        return torch.baddbmm(base, b, a, alpha=self.scaling)


class AdaptedExperts(nn.Module):
    """Experts of one layer, with adapters of some parameters."""

    def __init__(self, base: nn.Module, products: dict[str, _Product]) -> None:
        super().__init__()
        self.base_layer, self.adapted, self.is_enabled = base, list(products), True
        for name, product in products.items():
            self.add_module(name, product)

    def enable_adapters(self, enabled: bool) -> None:
        self.is_enabled = enabled

    def forward(self, *args: Any, **options: Any) -> Any:
        if not self.is_enabled:
            return self.base_layer(*args, **options)
        merged = {name: getattr(self, name).add_to(getattr(self.base_layer, name)) for name in self.adapted}
        return functional_call(self.base_layer, merged, args, options)


def choose_experts(model: Any, config: LoraConfig) -> list[str]:
    """Return the full names of the parameters to adapt; raise ConfigError if a target is not a joined expert."""
    joined = [name for name, p in model.named_parameters() if p.ndim == 3 and not name.endswith(".weight")]
    if unknown := [
        one for one in config.target_parameters if not any(f".{name}".endswith(f".{one}") for name in joined)
    ]:
        kinds = sorted({".".join(name.split(".")[-2:]) for name in joined})
        raise ConfigError(
            "model.lora.target_parameters must name joined experts of the model",
            seen=f"{', '.join(unknown)} with {type(model).__name__}, "
            + (f"which has {', '.join(kinds)}" if kinds else "which has none"),
            action=f"choose from {', '.join(kinds)}" if kinds else "leave it out",
        )
    return [name for name in joined if config.adapts_parameter(name)]


def add_expert_adapters(model: Any, names: list[str], config: LoraConfig) -> None:
    """Wrap the experts with fresh adapters, drawn from torch's generator."""
    for path in sorted({name.rpartition(".")[0] for name in names}):
        base, products = model.get_submodule(path), {}
        for name in (one for one in names if one.rpartition(".")[0] == path):
            last = name.rpartition(".")[2]
            shape = getattr(base, last).shape
            products[last] = product = _Product(shape, config.rank_of(name), config.scaling_of(name))
            bound = shape[2] ** -0.5  # that of a linear layer's fresh adapter
            nn.init.uniform_(product.lora_A[ADAPTER].weight, -bound, bound)
        model.set_submodule(path, AdaptedExperts(base, products))
