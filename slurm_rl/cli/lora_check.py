"""Are the targets of model.lora layers of the model? Told from the weights' headers, without torch."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.cli.headers import read_shapes
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError

# Of the models that are built here.
_TINY = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})


def check_lora_targets(model: ModelConfig) -> None:
    """Refuse targets that are in no block of the model, where this machine sees its weights.

    Raises:
        ConfigError: names the targets that there are.
    """
    if model.lora is None or model.lora.target_modules == "all-linear":
        return
    known = set(_TINY) if model.path is None else read_matrix_names(expand_user(model.path))
    unknown = [name for name in model.lora.target_modules if name not in known]
    if known and unknown:
        raise ConfigError(
            "model.lora.target_modules must name linear layers of the model other than its output head",
            seen=", ".join(unknown),
            action=f"choose of {', '.join(sorted(known))}, or all-linear",
        )


def read_matrix_names(folder: Path) -> set[str]:
    """Last parts of the names of the matrices inside blocks; none where there are no safetensors."""
    names: set[str] = set()
    for name, shape in read_shapes(folder).items():
        layer, _, kind = name.rpartition(".")
        parts = layer.split(".")
        if kind == "weight" and len(shape) == 2 and any(part.isdigit() for part in parts):
            names.add(parts[-1])
    return names
