"""Count gradient reductions as rank 0 of two; the other rank is a fake."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed import fake_pg

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.models import fsdp2
from slurm_rl.models.fsdp2 import FSDP2Backend
from slurm_rl.models.load_model import load_model
from tests.tiny_models import TinyModel, build_tiny_model

SMALL = TinyModel(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1)
NUM_MICRO_BATCHES = 3


@pytest.fixture
def two_ranks() -> Iterator[None]:
    torch.distributed.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny_model(SMALL, 0, tmp_path / "model")
    return tmp_path / "model"


def count_sums(folder: Path, monkeypatch: pytest.MonkeyPatch, offload: str) -> int:
    """Return reduce-scatters of one step divided by those of one micro-batch."""
    monkeypatch.setattr(fsdp2, "gather_objects", lambda value: [value] * 2)
    model = load_model(folder, ModelConfig(path=str(folder)))
    backend = FSDP2Backend(model, PolicyConfig(offload=offload), OptimConfig())
    counts = []
    for number in range(1, NUM_MICRO_BATCHES + 1):
        ids = torch.from_numpy(np.arange(2, 12)[None])
        with CommDebugMode() as seen:
            backend.backward(backend.model(input_ids=ids).logits.sum(), is_last=number == NUM_MICRO_BATCHES)
        counts.append(sum(n for op, n in seen.get_comm_counts().items() if "reduce_scatter" in str(op)))
    blocks = SMALL.num_layers + 1  # plus the root
    assert set(counts) <= {0, blocks} and counts[-1] == blocks
    assert all(p.grad is not None for p in model.parameters())
    return sum(counts) // blocks


@pytest.mark.usefixtures("two_ranks")
def test_fitting_gradients_are_reduced_once_per_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_sums(folder, monkeypatch, "none") == 1


@pytest.mark.usefixtures("two_ranks")
def test_other_gradients_are_reduced_as_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank may hold more than its own shard."""
    assert count_sums(folder, monkeypatch, "all") == NUM_MICRO_BATCHES
    monkeypatch.setattr(fsdp2, "device_memory", lambda: 10_000)
    assert count_sums(folder, monkeypatch, "none") == NUM_MICRO_BATCHES
