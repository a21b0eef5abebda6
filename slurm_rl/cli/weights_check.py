"""Is what lies in a model's safetensors what this run needs?

Told from headers and config alone: no torch, and no more than a few kilobytes are read.
"""

from __future__ import annotations

import json
from pathlib import Path

from slurm_rl.cli.model_shape import find_shape
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError


def read_shapes(folder: Path) -> dict[str, list[int]]:
    """Shape by name of all tensors in a folder's files; empty where there are none.

    Raises:
        ConfigError: a file is not whole.
    """
    return {
        name: entry["shape"]
        for file in sorted(folder.glob("*.safetensors"))
        for name, entry in read_header(file).items()
    }


def read_header(file: Path) -> dict[str, dict[str, list[int]]]:
    """Entry by name: `shape` and more."""
    # 8 bytes with the length of the JSON that follows: https://huggingface.co/docs/safetensors/#format
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    except (OSError, ValueError, MemoryError) as error:
        raise ConfigError("the model's safetensors must be whole", seen=f"{file}: {error}") from None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


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


_SHOWN = 3
_EMBEDDING = "embed_tokens.weight"
_NUM_SPECIAL = 2  # padding and end of text


def check_same_model(field: str, weights: str | None, model: ModelConfig) -> None:
    """Refuse weights whose shapes are not the model's, as far as this machine sees both.

    Raises:
        ConfigError: gives both shapes.
    """
    found = {} if weights is None else read_shapes(expand_user(weights))
    wanted = _expected(model)
    # Some models have names of their own once they are loaded; the trainer compares those, too.
    wrong = {name: shape for name, shape in found.items() if (short := _find(wanted, name)) and wanted[short] != shape}
    if wrong:
        told = "; ".join(f"{name} {wrong[name]}" for name in sorted(wrong)[:_SHOWN])
        needed = "; ".join(f"{wanted[_find(wanted, name) or name]}" for name in sorted(wrong)[:_SHOWN])
        raise ConfigError(
            f"the weights of {field} must have the shapes of the model ({needed})",
            seen=f"{told} in {weights}",
            action=f"point {field} at weights of the same architecture and size",
        )


def _find(wanted: dict[str, list[int]], name: str) -> str | None:
    return name if name in wanted else next((key for key in wanted if name.endswith(f".{key}")), None)


def _expected(model: ModelConfig) -> dict[str, list[int]]:
    """Shapes by name; where no weights are to be seen, that of the embedding alone, which tells most models apart."""
    if model.path is None:
        tiny = model.tiny
        return {} if tiny is None else {_EMBEDDING: [len(tiny.characters) + _NUM_SPECIAL, tiny.hidden_size]}
    folder = expand_user(model.path)
    if shapes := read_shapes(folder):
        return shapes
    shape = find_shape(model)
    return {} if shape is None else {_EMBEDDING: [shape.vocab_size, shape.hidden_size]}
