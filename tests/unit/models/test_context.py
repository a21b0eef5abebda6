"""Shares of a packed row, and models that cannot share rows; tests/train/test_meshes.py runs four ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import BloomConfig, MistralConfig, PreTrainedConfig, Qwen2_5_VLConfig, Qwen3Config

from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.sequences import PackedBatch, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.context import ContextGroup, require_context
from slurm_rl.models.forward import RowReader
from slurm_rl.models.frozen import FrozenModel
from slurm_rl.models.load_model import load_model, model_class
from slurm_rl.models.row_check import check_rows
from tests.tiny_models import TinyModel, build_character_tokenizer

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def build_sequences(lengths: Sequence[int]) -> list[TrainSequence]:
    random = np.random.default_rng(0)
    return [TrainSequence(token_ids=random.integers(2, 14, n), trained_from=max(1, n // 2)) for n in lengths]


def groups_of(size: int) -> list[ContextGroup]:
    unused: Any = None
    return [ContextGroup(unused, rank, size) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("lengths", [[24], [5, 3, 9], [2], [1, 13, 1]])
def test_ranks_share_each_token_and_read_once(lengths: list[int], size: int) -> None:
    batch = build_packed_batch(build_sequences(lengths))
    shares: list[PackedBatch] = [group.share(batch) for group in groups_of(size)]
    tokens, positions = (torch.cat([getattr(s, name) for s in shares]) for name in ("token_ids", "position_ids"))
    num, padding = len(batch.token_ids), -len(batch.token_ids) % size
    assert torch.equal(tokens[:num], batch.token_ids) and torch.equal(positions[:num], batch.position_ids)
    assert positions[num:].tolist() == list(range(padding)), "padding is a sequence of its own"
    assert all(share.cu_seqlens.diff().tolist() == [*lengths, *[padding] * (padding > 0)] for share in shares)
    read_at = batch.trained_positions - 1
    reads = [group.split_reads(read_at, num) for group in groups_of(size)]
    width = (num + padding) // size
    assert torch.cat([own.at + rank * width for rank, own in enumerate(reads)]).tolist() == read_at.tolist()
    for own in reads:
        assert len(own.places) == len(own.pick(read_at)) == max(1, len(own.at))
        assert own.places.max() < width


@pytest.fixture
def group() -> Iterator[ContextGroup]:
    """Return a group of one rank, which exchanges with itself."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ContextGroup(dist.group.WORLD, 0, 1)
    dist.destroy_process_group()


def save(config: PreTrainedConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    model_class(config).from_config(config).save_pretrained(folder)
    build_character_tokenizer(TinyModel()).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("config", [Qwen3Config(**SIZES), MistralConfig(**SIZES, sliding_window=4)])
def test_shared_row_has_values_of_plain_row(config: PreTrainedConfig, group: ContextGroup, tmp_path: Path) -> None:
    model = load_model(save(config, tmp_path), ModelConfig(path="", attention="varlen"))
    plain = RowReader(model, CPU)
    shared = replace(plain, context=group)
    assert check_rows(shared, torch.float32).packed
    sequences = build_sequences([9, 4, 7])
    for ours, wanted in zip(
        shared.compute_logprobs(sequences, 0.7), plain.compute_logprobs(sequences, 0.7), strict=True
    ):
        assert ours == pytest.approx(wanted, abs=1e-6)


def test_model_that_cannot_share_rows_is_refused(tmp_path: Path) -> None:
    """A fake group replaces the second rank; the model is refused before any collective."""
    folder = save(BloomConfig(vocab_size=16, hidden_size=32, n_layer=1, n_head=4), tmp_path)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        policy = PolicyConfig(num_workers=2, context_parallel=2)
        with pytest.raises(ConfigError, match=r"context_parallel need.*got Bloom.*policy\.context_parallel=1"):
            FrozenModel(folder, ModelConfig(path=str(folder)), policy, 1.0, CPU)
    finally:
        dist.destroy_process_group()


def test_images_and_indivisible_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs a text model; got qwen2_5_vl"):
        require_context(Qwen2_5_VLConfig(), 2, has_images=True)
    with pytest.raises(ConfigError, match=r"got 4 and 2 heads over 8 ranks.*choose one of 1, 2, 4"):
        require_context(Qwen3Config(**SIZES), 8, has_images=False)
    require_context(Qwen3Config(**SIZES), 4, has_images=False)
