"""A policy checkpoint to a Hugging Face folder, without the ranks that wrote it.

    rank-0.pt rank-1.pt ...  --one tensor at a time-->  model-00001-of-00003.safetensors ... + config + tokenizer

Shards are mapped, not read, and each output file is written as soon as it is full, so memory holds one output
file and one tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from slurm_rl.config.model import ModelConfig
from slurm_rl.errors import CheckpointError
from slurm_rl.run_dir import read_json, write_text
from slurm_rl.train.engine.export import copy_processors
from slurm_rl.train.engine.folders import written_beside
from slurm_rl.train.engine.lora import merge_into_base, plain_name, read_base
from slurm_rl.train.engine.model import load_tokenizer, model_class
from slurm_rl.train.engine.shards import load_rank

INDEX = "model.safetensors.index.json"


def convert_checkpoint(policy: Path, model_path: str, model: ModelConfig, out: Path, max_shard_bytes: int) -> int:
    """Write the parameters of a checkpoint as a model that Hugging Face loads; the number of parameters.

    Args:
        policy: the folder `policy` of a checkpoint that verifies.
        model_path: where architecture and tokenizer come from.
        out: appears whole, or not at all.

    Raises:
        CheckpointError: the checkpoint is of another backend or another model.
    """
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=model.trust_remote_code)
    dtype = getattr(torch, model.dtype)
    config.dtype = dtype
    if "score.weight" in read_json(policy / "layout.json")["parameters"]:
        _make_reward_model(config, model_path, model)
    wanted, adapted = _expected_shapes(config, model), model.lora is not None
    with written_beside(out) as beside:
        count = 0
        writer = _ShardWriter(beside, max_shard_bytes)
        for name, tensor in _read_model(policy, model_path, model):
            if adapted and name not in wanted:
                continue  # a base may hold a tied weight under both names
            if wanted.pop(name, None) != tensor.shape:
                raise CheckpointError(
                    f"the checkpoint must be of the model in {model_path}",
                    seen=f"{name} of shape {list(tensor.shape)}",
                    action="name the run whose config made the checkpoint",
                )
            writer.add(name, tensor.to(dtype).contiguous())
            count += tensor.numel()
        if wanted:
            raise CheckpointError(
                "the checkpoint must hold every parameter of the model", seen="no " + ", ".join(sorted(wanted)[:4])
            )
        writer.finish()
        config.save_pretrained(beside)
        load_tokenizer(model_path, trust_remote_code=model.trust_remote_code).save_pretrained(beside)
        copy_processors(model_path, beside)
    return count


def _read_model(policy: Path, model_path: str, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Parameters by the plain model's names; adapters merged into the base that they were trained over."""
    if model.lora is None:
        yield from read_parameters(policy)
        return
    adapters = {plain_name(name): tensor for name, tensor in read_parameters(policy)}
    base = read_base(model.init_from or model_path, getattr(torch, model.dtype))
    yield from merge_into_base(base, adapters, model.lora.scaling, torch.device("cpu"))


def read_parameters(policy: Path) -> Iterator[tuple[str, Tensor]]:
    """Whole parameters by name, one after the other, joined from the ranks' shards along their first dimension.

    Raises:
        CheckpointError: the checkpoint is not one of fsdp2.
    """
    layout = read_json(policy / "layout.json")
    if layout["backend"] != "fsdp2":
        raise CheckpointError(
            "convert reads checkpoints of policy.backend=fsdp2",
            seen=layout["backend"],
            action="let the run end, which exports its model, or use DeepSpeed's zero_to_fp32",
        )
    ranks = range(layout["num_workers"])
    shards = [load_rank(policy, rank, mmap=True) for rank in ranks]
    for name in layout["parameters"]:
        parts = [shard["parameters"][name] for shard in shards]
        yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


def _expected_shapes(config: Any, model: ModelConfig) -> dict[str, torch.Size]:
    """Shapes by name of each parameter, under the first of its names."""
    with torch.device("meta"):
        module = _class_of(config).from_config(config, trust_remote_code=model.trust_remote_code)
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def _make_reward_model(config: Any, model_path: str, model: ModelConfig) -> None:
    """Say in the config of a language model what a reward model made of it says."""
    config.num_labels = 1
    if config.pad_token_id is None:
        config.pad_token_id = load_tokenizer(model_path, trust_remote_code=model.trust_remote_code).pad_token_id
    with torch.device("meta"):
        config.architectures = [type(AutoModelForSequenceClassification.from_config(config)).__name__]


def _class_of(config: Any) -> Any:
    is_scorer = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    return AutoModelForSequenceClassification if is_scorer else model_class(config)


class _ShardWriter:
    """Fills safetensors files up to a size; their names hold their number, so they are given at the end."""

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
        names = [f"model-{n:05}-of-{len(self.files):05}.safetensors" for n in range(1, len(self.files) + 1)]
        for number, name in enumerate(names):
            self._part(number).rename(self.folder / name)
        placed = {parameter: name for name, inside in zip(names, self.files, strict=True) for parameter in inside}
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": placed}
        write_text(self.folder / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")
