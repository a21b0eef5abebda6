"""Read the whole parameters of a policy checkpoint, one after the other, from either backend.

    fsdp2            rank-<n>.pt, a part of each parameter
    deepspeed 0..2   deepspeed/mp_rank_00_model_states.pt, whole parameters
    deepspeed 3      deepspeed/*zero_pp_rank_<n>_*_optim_states.pt, each rank's part of all parameters, laid end to end

Files are mapped, not read. DeepSpeed's are pickles: only a few of its classes are allowed, and no code runs.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.parallel import choose_shard_dim
from slurm_rl.config.train import PolicyConfig
from slurm_rl.errors import CheckpointError, RunDirError
from slurm_rl.models.meshes import open_meshes
from slurm_rl.models.shards import cut, load_rank, load_tensors
from slurm_rl.run_dir.run_dir import read_json

_FOLDER = "deepspeed"


def read_parameters(policy: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the trained parameters of a checkpoint's folder `policy`, by the engine's names."""
    layout = read_json(policy / "layout.json")
    kind = layout["backend"] if layout.get("zero_stage") != 3 else "zero-3"
    yield from _READERS[kind](policy, layout["num_workers"], layout["parameters"])


def _read_fsdp2(policy: Path, num_workers: int, shapes: dict[str, list[int]]) -> Iterator[tuple[str, Tensor]]:
    shards = [load_rank(policy, rank, mmap=True) for rank in range(num_workers)]
    for name, shape in shapes.items():
        parts = [shard["parameters"][name] for shard in shards]
        yield name, parts[0] if len(parts) == 1 else torch.cat(parts, choose_shard_dim(shape, num_workers))


def _read_whole(policy: Path, _: int, shapes: dict[str, list[int]]) -> Iterator[tuple[str, Tensor]]:
    # Every rank has the weights as the model computes with them; the master weights hold no more.
    module = load_deepspeed(policy / _FOLDER / "mp_rank_00_model_states.pt", mmap=True)["module"]
    for name in shapes:
        yield name, module[name]


def _read_zero3(policy: Path, num_workers: int, shapes: dict[str, list[int]]) -> Iterator[tuple[str, Tensor]]:
    files = sorted((policy / _FOLDER).glob("*_optim_states.pt"), key=_rank_of)
    if [_rank_of(file) for file in files] != list(range(num_workers)):
        raise CheckpointError(
            f"the checkpoint must have the files of {num_workers} ranks",
            seen=", ".join(file.name for file in files) or f"none in {policy / _FOLDER}",
        )
    ranks = [load_deepspeed(file, mmap=True)["optimizer_state_dict"]["fp32_flat_groups"] for file in files]
    order = load_deepspeed(policy / _FOLDER / "zero_pp_rank_0_mp_rank_00_model_states.pt", mmap=True)["param_shapes"]
    offset = 0
    for name in (name for group in order for name in group):
        # Each rank has an equal part of each parameter, padded where it does not come out even.
        size = -(-math.prod(shapes[name]) // num_workers)
        parts = [piece for groups in ranks for piece in cut(groups, offset, size)]
        offset += size
        yield name, torch.cat(parts)[: math.prod(shapes[name])].view(shapes[name])


def _rank_of(file: Path) -> int:
    found = re.search(r"zero_pp_rank_(\d+)_", file.name)
    return int(found.group(1)) if found else -1


def load_deepspeed(file: Path, *, mmap: bool = False) -> dict[str, Any]:
    # Numbers and names, without code of their own when they are read.
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return load_tensors(file, mmap=mmap, classes=[LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address])


_READERS: dict[str, Callable[[Path, int, dict[str, list[int]]], Iterator[tuple[str, Tensor]]]] = {
    "fsdp2": _read_fsdp2,
    "deepspeed": _read_whole,
    "zero-3": _read_zero3,
}


def build_layout(module: Any, model: ModelConfig, policy: PolicyConfig) -> dict[str, Any]:
    """Return layout.json of a checkpoint: the settings that must match when it is loaded."""
    lora, meshes = model.lora, open_meshes(policy)
    return {
        "backend": policy.backend,
        "zero_stage": policy.zero_stage if policy.backend == "deepspeed" else None,
        # Ranks that write the state; replicas have the same one.
        "num_workers": meshes.num_parts if policy.backend == "fsdp2" else meshes.dims.num_ranks,
        # Settings that adapters depend on.
        "lora": lora
        and {
            **{name: getattr(lora, name) for name in ("alpha", "rank", "rank_pattern", "alpha_pattern")},
            "base": model.init_from or model.source,
        },
        # ZeRO-3 leaves empty parameters that remember their shape.
        "parameters": {
            name: list(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        },
    }


def require_layout(folder: Path, layout: dict[str, Any]) -> dict[str, Any]:
    """The layout it was saved with, when all that this one names is the same."""
    try:
        saved = read_json(folder / "layout.json")
    except RunDirError as error:
        raise CheckpointError(error.rule, seen=error.seen, action="choose a folder that `save` wrote") from error
    for key, value in json.loads(json.dumps(layout)).items():
        if saved.get(key) != value:
            raise CheckpointError(
                f"a checkpoint must be loaded with the {key} it was saved with ({_describe(key, saved.get(key))}, "
                f"now {_describe(key, value)})",
                seen=str(folder),
                action="resume with the config of the run that saved it, or start a new run with model.init_from",
            )
    return saved


def _describe(key: str, value: Any) -> str:
    if key != "parameters" or not isinstance(value, dict):
        return repr(value)
    return f"{len(value)} of {sum(math.prod(shape) for shape in value.values())} numbers"
