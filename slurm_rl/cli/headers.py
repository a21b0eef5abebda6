"""What is in safetensors, from their headers alone: no torch, and no more than a few kilobytes are read."""

from __future__ import annotations

import json
from pathlib import Path

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
