"""Rank files of an fsdp2 checkpoint, readable by any number of ranks.

    rank-<n>.pt  {"parameters": {name: part}, "moments": {name: {"exp_avg": part, ..., "step": scalar}}}

The n-th file has the n-th region of each tensor, see `region_of`. Other files hold the random state of each process.
"""

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from slurm_rl.config.parallel import choose_shard_dim
from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.background import write_whole
from slurm_rl.models.distributed import get_rank
from slurm_rl.models.meshes import Meshes

Region = tuple[slice, ...]
"""Part of a tensor, with a slice of each dimension."""


def rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.pt"


def _rng_file(folder: Path) -> Path:
    return folder / f"rng-{get_rank()}.pt"


def load_tensors(file: Path, *, mmap: bool = False, classes: Sequence[Any] = ()) -> dict[str, Any]:
    """Read a file of torch.save: tensors, plain containers and `classes`; raise CheckpointError for others."""
    try:
        with torch.serialization.safe_globals(list(classes)):
            return dict(torch.load(file, map_location="cpu", weights_only=True, mmap=mmap))
    except FileNotFoundError:
        raise CheckpointError("the checkpoint must hold every file of its backend", seen=f"no {file.name}") from None
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            "a checkpoint must contain only tensors and plain values; loading others could run code",
            seen=f"{file} ({str(error).strip().splitlines()[0]})",
            action="remove it if you do not know its origin, and resume from the previous checkpoint",
        ) from None


def load_rank(folder: Path, rank: int, *, mmap: bool = False) -> dict[str, Any]:
    return load_tensors(rank_file(folder, rank), mmap=mmap)


class SavedShards:
    """This rank's part of the state; `num_saved` ranks wrote it."""

    def __init__(self, folder: Path, num_saved: int, meshes: Meshes) -> None:
        self.meshes = meshes
        self.is_same = num_saved == meshes.num_parts
        if self.is_same:
            self.files = [load_rank(folder, meshes.part)]
        else:
            # Mapped: of each file only the tensor at hand is in memory.
            self.files = [load_rank(folder, rank, mmap=True) for rank in range(num_saved)]

    def moment_names(self, name: str) -> list[str]:
        return list(self.files[0]["moments"][name])

    def read(self, name: str, shape: Sequence[int], moment: str | None = None) -> Tensor:
        """Return this rank's region of a parameter, or of one of its moments; a scalar is the same on every rank."""
        found = [file["parameters"][name] if moment is None else file["moments"][name][moment] for file in self.files]
        if self.is_same or found[0].ndim == 0:
            return found[0]
        # Only this region of the mapped files is read.
        return read_region(found, shape, region_of(shape, self.meshes.part, self.meshes.num_parts))


def cut(parts: Sequence[Tensor], offset: int, size: int) -> list[Tensor]:
    """Return `size` rows from `offset` on of tensors, end to end.

    >>> parts = [torch.arange(3), torch.arange(3, 4), torch.arange(4, 9)]
    >>> [[piece.tolist() for piece in cut(parts, offset, 4)] for offset in (2, 5)]
    [[[2], [3], [4, 5]], [[5, 6, 7, 8]]]
    """
    pieces = []
    for part in parts:
        if offset < len(part) and size > 0:
            pieces.append(part[offset : offset + size])
            size -= len(pieces[-1])
        offset = max(offset - len(part), 0)
    return pieces


def region_of(shape: Sequence[int], part: int, num_parts: int) -> Region:
    """Return a part of a parameter, as FSDP2 shards it: the last ones are shorter or empty.

    >>> [list(range(5))[region_of([5], part, 4)[0]] for part in range(4)]
    [[0, 1], [2, 3], [4], []]
    """
    dim = choose_shard_dim(shape, num_parts)
    size = -(-shape[dim] // num_parts)
    region = [slice(0, length) for length in shape]
    region[dim] = slice(min(part * size, shape[dim]), min((part + 1) * size, shape[dim]))
    return tuple(region)


def read_region(parts: Sequence[Tensor], shape: Sequence[int], wanted: Region) -> Tensor:
    """Return a region of a tensor of this shape from all of its parts."""
    pieces = []
    for number, part in enumerate(parts):
        held = region_of(shape, number, len(parts))
        both = [
            (max(a.start, b.start) - a.start, min(a.stop, b.stop) - a.start) for a, b in zip(held, wanted, strict=True)
        ]
        if all(start < stop for start, stop in both):
            pieces.append(part[tuple(slice(*ends) for ends in both)])
    if not pieces:
        return parts[0].new_empty([one.stop - one.start for one in wanted])
    return torch.cat(pieces, choose_shard_dim(shape, len(parts)))


def to_local(tensor: Tensor) -> Tensor:
    """Return this rank's part, without a gradient."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def from_local(local: Tensor, like: DTensor) -> DTensor:
    """Return the tensor that is sharded as `like` and has this part on this rank, on the part's device."""
    # DTensor.from_local would move a part on the host to the GPU of the mesh.
    return DTensor(local, like._spec, requires_grad=False)


def save_rng(folder: Path) -> None:
    """Save the random state of this process."""
    drawn: dict[str, Any] = np.random.get_state(legacy=False)
    version, words, next_gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": {
            **drawn,
            "state": {**drawn["state"], "key": torch.from_numpy(drawn["state"]["key"].astype(np.int64))},
        },
        "python": [version, list(words), next_gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    write_whole(_rng_file(folder), lambda file: torch.save(state, file))


def load_rng(folder: Path) -> None:
    """Restore the random state; a checkpoint of fewer ranks has none for this process and changes nothing."""
    path = _rng_file(folder)
    if not path.is_file():
        return
    state = torch.load(path, weights_only=True)
    torch.set_rng_state(state["torch"])
    drawn = state["numpy"]
    drawn["state"]["key"] = drawn["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state(drawn)
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words), next_gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
