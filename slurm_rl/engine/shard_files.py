"""Tensors one after the other into safetensors files, each written as soon as it is full.

Memory holds what is to go into one file, the tensor that did not fit any more, and safetensors' copy of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from slurm_rl.run_dir import write_text

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def write_shards(folder: Path, tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> int:
    """Fill an existing folder as Hugging Face does: one file, or several and an index; the number of numbers."""
    writer, count = _ShardWriter(folder, max_bytes), 0
    for name, tensor in tensors:
        writer.add(name, tensor.contiguous())
        count += tensor.numel()
        del tensor  # or it would live until the next one is there
    writer.finish()
    return count


class _ShardWriter:
    """Fills files up to a size; their names hold their number, so they are given at the end."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.pending: dict[str, Tensor] = {}
        self.files: list[list[str]] = []
        self.total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        if self.pending and sum(t.nbytes for t in self.pending.values()) + tensor.nbytes > self.max_bytes:
            self._write()
        self.pending[name] = tensor
        self.total_bytes += tensor.nbytes

    def _write(self) -> None:
        save_file(self.pending, self._part(len(self.files)), metadata={"format": "pt"})
        self.files.append(list(self.pending))
        self.pending = {}

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number}"

    def finish(self) -> None:
        self._write()
        if len(self.files) == 1:
            self._part(0).rename(self.folder / SINGLE)
            return
        names = [f"model-{n:05}-of-{len(self.files):05}.safetensors" for n in range(1, len(self.files) + 1)]
        for number, name in enumerate(names):
            self._part(number).rename(self.folder / name)
        placed = {parameter: name for name, inside in zip(names, self.files, strict=True) for parameter in inside}
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": placed}
        write_text(self.folder / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")
