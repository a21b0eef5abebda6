"""Read names and shapes of tensors from the headers of safetensors files, without torch."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_rl.errors import ConfigError

_INDEX = "model.safetensors.index.json"
# The library's own bound.
_MAX_HEADER = 100_000_000
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def count_parameters(folder: Path, config: Mapping[str, Any]) -> int | None:
    """Return the parameters that training loads from a model's folder.

    Layers for speculative decoding, which some models have after the others, are not loaded, nor is a copy of a tied
    embedding.

    Returns:
        None if files are missing, or if they are quantized and pack several values into one.
    """
    text = config.get("text_config") or config
    shapes = {} if "quantization_config" in config else read_shapes(folder)
    if not shapes or not _is_complete(folder):
        return None
    layers, is_tied = text.get("num_hidden_layers"), config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    total = 0
    for name, shape in shapes.items():
        found = None if "visual" in name or "vision" in name else _LAYER.search(name)
        is_extra = found is not None and isinstance(layers, int) and int(found[1]) >= layers
        if not is_extra and not name.startswith("mtp.") and not (is_tied and name.endswith("lm_head.weight")):
            total += math.prod(shape)
    return total


def _is_complete(folder: Path) -> bool:
    if not (folder / _INDEX).is_file():
        return True
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    return all((folder / name).is_file() for name in set(index.get("weight_map", {}).values()))


def read_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of all tensors in a folder by name. Raises ConfigError if a file is truncated."""
    return {
        name: entry["shape"]
        for file in sorted(folder.glob("*.safetensors"))
        for name, entry in read_header(file).items()
    }


def read_header(file: Path) -> dict[str, dict[str, list[int]]]:
    """Return the entries of a safetensors header by name."""
    # 8 bytes with the length of the JSON that follows: https://huggingface.co/docs/safetensors/#format
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > _MAX_HEADER:
                raise ValueError(f"not a safetensors file: its header would have {length} bytes")
            header = json.loads(opened.read(length))
        if not isinstance(header, dict):
            raise ValueError(f"not a safetensors file: its header is a {type(header).__name__}")
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        data = max((entry["data_offsets"][1] for entry in entries.values() if "data_offsets" in entry), default=0)
        if (size := file.stat().st_size) < 8 + length + data:
            raise ValueError(f"the file is truncated: it has {size} of {8 + length + data} bytes")
    except (OSError, ValueError) as error:
        raise ConfigError(
            "the model's safetensors must be complete",
            seen=f"{file}: {error}",
            action="download or copy the file again",
        ) from None
    return entries
