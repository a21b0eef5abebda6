"""Read weights in part: each rank reads only the rows that it keeps, never the whole model."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.models.distributed import get_rank
from slurm_rl.models.published_names import Published, find_published, plain_name
from slurm_rl.run_dir.meter import measure


class WeightFiles:
    """The safetensors of a Hugging Face folder or downloaded hub name; no tensor is kept in memory."""

    def __init__(self, path: str | Path) -> None:
        config = cached_file(str(path), "config.json", local_files_only=True)
        self.folder = Path(config or path).parent
        index = self.folder / SAFE_WEIGHTS_INDEX_NAME
        if index.is_file():
            self.file_of: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        else:
            with safe_open(self.folder / SAFE_WEIGHTS_NAME, "pt") as file:
                self.file_of = dict.fromkeys(file.keys(), SAFE_WEIGHTS_NAME)
        self.published = {name: Published(((name,),)) for name in self.file_of}

    def shapes(self) -> dict[str, list[int]]:
        found = {}
        for file_name in sorted(set(self.file_of.values())):
            with safe_open(self.folder / file_name, "pt") as file:
                found.update({name: file.get_slice(name).get_shape() for name in file.keys()})  # noqa: SIM118
        return {name: _shape(published, found) for name, published in self.published.items()}

    def read(self, name: str, region: tuple[slice, ...] | None = None) -> Tensor:
        """Read a tensor, or this region of it, to CPU, and close the file: mapped pages would count as our memory."""
        published, files = self.published[name], {}
        with ExitStack() as opened:

            def find(tensor: str) -> Any:
                file_name = self.file_of[tensor]
                if file_name not in files:
                    files[file_name] = opened.enter_context(safe_open(self.folder / file_name, "pt"))
                return files[file_name]

            if not published.is_joined:
                [[tensor]] = published.experts
                found: Tensor = (
                    find(tensor).get_tensor(tensor) if region is None else find(tensor).get_slice(tensor)[region]
                )
                return found
            wanted, *inner = region or (slice(None),)
            experts = [
                _cut([find(part).get_slice(part) for part in parts], inner) for parts in published.experts[wanted]
            ]
            return torch.stack(experts) if experts else torch.empty(0, *self.shapes()[name][1:])


def _cut(parts: Sequence[Any], region: Sequence[slice]) -> Tensor:
    """Return a region of safetensors' slices, which are joined along their first dimension."""
    if not region:
        return torch.cat([part[:] for part in parts])
    rows, *others = region
    pieces, offset = [], 0
    for part in parts:
        length = part.get_shape()[0]
        own = slice(max(rows.start - offset, 0), min(rows.stop - offset, length))
        if own.start < own.stop:
            pieces.append(part[(own, *others)])
        offset += length
    return torch.cat(pieces)


def _shape(published: Published, found: dict[str, list[int]]) -> list[int]:
    first, *_ = published.experts
    if not published.is_joined:
        return found[first[0]]
    return [len(published.experts), sum(found[part][0] for part in first), *found[first[0]][1:]]


def find_weights(model: PreTrainedModel, path: str | Path, unused: str | None = None) -> WeightFiles | None:
    """Return the files of an empty model's weights if each tensor is in them with its shape, else None.

    Hugging Face's loader handles other cases, with the whole model in memory.

    Args:
        unused: prefix of tensors that the model may lack.
    """
    try:
        files = WeightFiles(path)
        published = find_published(model, files.file_of)
        if published is None:
            return None
        files.published = published
        held = files.shapes()
    except (OSError, SafetensorError):
        return None
    wanted = {name: list(p.shape) for name, p in model.named_parameters() if p.is_meta}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or []]
    # A tied weight may be in the files under each of its names.
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if model.state_dict().keys() - known:
        return None  # a buffer that is saved: only parameters are read here
    others = [name for name in held if name not in known and not (unused and name.startswith(unused))]
    strange = [name for name in others if not any(pattern.search(name) for pattern in ignored)]
    fits = not strange and all(held.get(name) == shape for name, shape in wanted.items())
    return files if fits else None


def names_in_files(model: nn.Module) -> dict[nn.Parameter, str]:
    """Return the name of each parameter in the files; a tied one has the first of its names."""
    return {parameter: plain_name(name) for name, parameter in model.named_parameters()}


def fill_parameters(module: nn.Module, make: Callable[[nn.Parameter], Tensor]) -> None:
    """Replace each parameter on the meta device with `make`'s result; tied ones stay tied."""
    empty = [parameter for parameter in module.parameters() if parameter.is_meta]
    sizes = [parameter.numel() * parameter.dtype.itemsize for parameter in empty]
    with measure("loading weights", sum(sizes), is_shown=get_rank() == 0) as advance:
        for parameter, size in zip(empty, sizes, strict=True):
            value = nn.Parameter(make(parameter), requires_grad=parameter.requires_grad)
            torch.utils.swap_tensors(parameter, value)
            advance(size)


_SHOWN_NAMES = 4


def require_complete(
    error: type[SlurmRLError],
    rule: str,
    *,
    missing: Collection[str] = (),
    unknown: Collection[str] = (),
    reshaped: Collection[str] = (),
    seen: str,
    action: str,
) -> None:
    """Raise `error` if a tensor of the model is missing, unknown to it, or of another shape."""
    misfits = {"missing": missing, "not of this model": unknown, "of another shape": reshaped}
    found = [f"{len(names)} {kind}: {_shorten(sorted(names))}" for kind, names in misfits.items() if names]
    if found:
        raise error(f"{rule} ({'; '.join(found)})", seen=seen, action=action)


def require_fit(loaded: Mapping[str, Any], field: str, seen: str) -> None:
    """Raise ConfigError unless transformers found each tensor of the model, and no others.

    Args:
        loaded: `output_loading_info` of `from_pretrained`.
        field: config key of the weights.
    """
    require_complete(
        ConfigError,
        f"the weights of {field} must be those of the model's architecture",
        missing=loaded["missing_keys"],
        unknown=loaded["unexpected_keys"],
        reshaped=[f"{name} {list(found)} for {list(wanted)}" for name, found, wanted in loaded["mismatched_keys"]],
        seen=seen,
        action=f"point {field} at weights of the same architecture and size",
    )


def check_complete(
    tensors: Iterable[tuple[str, Tensor]],
    shapes: Mapping[str, Sequence[int]],
    error: type[SlurmRLError],
    rule: str,
    *,
    seen: str,
    action: str,
) -> Iterator[tuple[str, Tensor]]:
    """Yield `tensors`, and after the last one raise `error` unless they are those of `shapes`, each once.

    The error comes last because other ranks take part in gathering each tensor.
    """
    left, unknown, reshaped = dict(shapes), [], []
    for name, tensor in tensors:
        shape = left.pop(name, None)
        if shape is None:
            unknown.append(name)
        elif tuple(shape) != tuple(tensor.shape):
            reshaped.append(f"{name} {list(tensor.shape)} for {list(shape)}")
        yield name, tensor
    require_complete(error, rule, missing=left, unknown=unknown, reshaped=reshaped, seen=seen, action=action)


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
