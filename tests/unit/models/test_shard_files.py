import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from slurm_rl.errors import CheckpointError
from slurm_rl.models.convert import require_same_logits
from slurm_rl.models.export import export_model, write_shards
from slurm_rl.models.load_model import load_tokenizer
from tests.tiny_models import TinyModel, build_tiny_model

NUM_TENSORS, TENSOR_BYTES = 24, 4000


class Held:
    """Count bytes of live tensors."""

    def __init__(self) -> None:
        self.bytes = self.peak = 0

    def watch(self, tensor: Tensor) -> Tensor:
        self.bytes += tensor.nbytes
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(tensor, self._forget, tensor.nbytes)
        return tensor

    def _forget(self, count: int) -> None:
        self.bytes -= count


def make(held: Held) -> Iterator[tuple[str, Tensor]]:
    for index in range(NUM_TENSORS):
        yield f"layer.{index}.weight", held.watch(torch.full((TENSOR_BYTES // 4,), float(index)))


def test_convert_holds_one_file_and_one_tensor(tmp_path: Path) -> None:
    held = Held()
    count = write_shards(tmp_path, make(held), max_bytes=3 * TENSOR_BYTES)
    assert count == NUM_TENSORS * TENSOR_BYTES // 4
    # With safetensors' copy of the current file: two files and one tensor.
    assert held.peak <= 4 * TENSOR_BYTES
    assert held.bytes == 0
    found = {name: t for file in tmp_path.glob("model-*-of-00008.safetensors") for name, t in load_file(file).items()}
    assert {name: float(t[0]) for name, t in found.items()} == {f"layer.{i}.weight": i for i in range(NUM_TENSORS)}
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == found.keys()


def test_small_export_is_one_file_without_index(tmp_path: Path) -> None:
    write_shards(tmp_path, make(Held()), max_bytes=10**9)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny_model(TinyModel(hidden_size=32, num_layers=6, num_heads=2, num_kv_heads=1), 0, folder)
    return folder


def test_export_never_holds_full_model(folder: Path, tmp_path: Path) -> None:
    model, held = AutoModelForCausalLM.from_pretrained(folder), Held()
    state = ((name, held.watch(tensor.detach().clone())) for name, tensor in model.state_dict().items())
    total = sum(tensor.nbytes for tensor in model.parameters())
    out = tmp_path / "export"
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    export_model(
        model,
        state,
        load_tokenizer(folder),
        out,
        shapes=shapes,
        processors_of=str(folder),
        max_shard_bytes=total // 8,
    )
    largest = max(tensor.nbytes for tensor in model.parameters())
    assert held.peak <= total // 8 + 2 * largest < total / 2
    again, loaded = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert again.config.use_cache


def test_export_that_computes_differently_is_refused(folder: Path, tmp_path: Path) -> None:
    config = Qwen3Config.from_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    source = list(weights.items())
    assert require_same_logits(AutoModelForCausalLM, config, source, folder, False) == 0.0
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "other")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**weights, name: weights[name] + 0.01}, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"to 1e-05.*a difference of"):
        require_same_logits(AutoModelForCausalLM, config, source, tmp_path / "other", False)
