"""Weights read in part: of an empty model's tensors each rank reads the rows that it keeps.

A model of 70 billion parameters is 282 GB in float32. Loaded whole by each of eight ranks before it is cut, it would
take 2.2 TB of a node; this way a rank holds its shard and the rows of one tensor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from slurm_rl.engine.lora import plain_name


class WeightFiles:
    """The safetensors of a Hugging Face folder, or of a downloaded hub name; nothing of them is kept in memory.

    Raises:
        OSError: they are not there.
        SafetensorError: a file is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        config = cached_file(str(path), "config.json", local_files_only=True)
        self.folder = Path(config or path).parent
        index = self.folder / SAFE_WEIGHTS_INDEX_NAME
        if index.is_file():
            self.file_of: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        else:
            with safe_open(self.folder / SAFE_WEIGHTS_NAME, "pt") as file:
                self.file_of = dict.fromkeys(file.keys(), SAFE_WEIGHTS_NAME)

    def shapes(self) -> dict[str, list[int]]:
        found = {}
        for file_name in sorted(set(self.file_of.values())):
            with safe_open(self.folder / file_name, "pt") as file:
                found.update({name: file.get_slice(name).get_shape() for name in file.keys()})  # noqa: SIM118
        return found

    def read(self, name: str, rows: slice | None = None) -> Tensor:
        """A tensor, or these rows of it, on CPU. The file is closed again: what was mapped would count as ours."""
        with safe_open(self.folder / self.file_of[name], "pt") as file:
            found: Tensor = file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
        return found


def find_weights(model: PreTrainedModel, path: str | Path, unused: str | None = None) -> WeightFiles | None:
    """The files of an empty model's weights, if each tensor is there under its own name and in its shape.

    Otherwise None: Hugging Face's own loading knows which names changed over the years and which tensors a model
    joins or splits, and tells of what does not fit; it takes the whole model to do so.

    Args:
        unused: how the names of tensors begin that the model may do without.
    """
    try:
        files = WeightFiles(path)
        held = files.shapes()
    except (OSError, SafetensorError):
        return None
    wanted = {name: list(p.shape) for name, p in model.named_parameters() if p.is_meta}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or []]
    # A tied weight may be in the files under each of its names.
    known = {*wanted, *model.state_dict()}
    others = [name for name in held if name not in known and not (unused and name.startswith(unused))]
    strange = [name for name in others if not any(pattern.search(name) for pattern in ignored)]
    fits = not strange and all(held.get(name) == shape for name, shape in wanted.items())
    return files if fits else None


def names_in_files(model: nn.Module) -> dict[nn.Parameter, str]:
    """Of each parameter; a tied one is in the files under the first of its names."""
    return {parameter: plain_name(name) for name, parameter in model.named_parameters()}


def fill_parameters(module: nn.Module, make: Callable[[nn.Parameter], Tensor]) -> None:
    """Put what `make` gives in place of each parameter on the meta device; tied ones stay tied."""
    for parameter in module.parameters():
        if parameter.is_meta:
            value = nn.Parameter(make(parameter), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, value)
