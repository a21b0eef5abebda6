"""Rank files of an fsdp2 checkpoint, readable by any number of ranks.

    rank-<n>.pt  {"parameters": {name: rows}, "moments": {name: {"exp_avg": rows, ..., "step": scalar}}}

Every tensor is split along its first dimension like torch.chunk. Other files hold the random state of each process.
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

from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.background import write_whole
from slurm_rl.models.distributed import get_rank, get_world_size


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

    def __init__(self, folder: Path, num_saved: int) -> None:
        self.is_same = num_saved == get_world_size()
        if self.is_same:
            self.files = [load_rank(folder, get_rank())]
        else:
            # Mapped: of each file only the tensor at hand is in memory.
            self.files = [load_rank(folder, rank, mmap=True) for rank in range(num_saved)]

    def moment_names(self, name: str) -> list[str]:
        return list(self.files[0]["moments"][name])

    def read(self, name: str, moment: str | None = None) -> Tensor:
        """This rank's rows of a parameter, or of one of its moments; a scalar is the same on every rank."""
        found = [file["parameters"][name] if moment is None else file["moments"][name][moment] for file in self.files]
        if self.is_same or found[0].ndim == 0:
            return found[0]
        rows = rows_of_rank(sum(map(len, found)), get_rank(), get_world_size())
        # Of the mapped files, only these rows are read.
        parts = cut(found, rows.start, rows.stop - rows.start)
        return torch.cat(parts) if parts else found[0][:0]


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


def rows_of_rank(num_rows: int, rank: int, world_size: int) -> slice:
    """Return equal parts, the last ones shorter or empty, as torch.chunk makes them.

    >>> [list(range(5))[rows_of_rank(5, rank, 4)] for rank in range(4)]
    [[0, 1], [2, 3], [4], []]
    """
    size = -(-num_rows // world_size)
    return slice(min(rank * size, num_rows), min((rank + 1) * size, num_rows))


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
