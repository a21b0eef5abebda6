"""Weights gathered in buckets equal those gathered one by one by torch, bit for bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, distributed, multiprocessing
from torch.distributed.tensor import DTensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from slurm_rl.config.model import LoraConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.models import gather
from slurm_rl.models.backend import Backend, build_backend
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.lora import add_adapters, is_adapter
from tests.unit.models.test_store_address import free_port

# Rows not divisible by 2 or 3: 25 of the vocabulary, 14 of the key weights, 35 of the MLP.
ODD = Qwen2Config(
    vocab_size=25,
    hidden_size=14,
    intermediate_size=35,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    tie_word_embeddings=True,
)
BUCKET = 2000
"""Bytes: larger than several tensors of this model, smaller than others."""


def build(dtype: torch.dtype, num_ranks: int, *, lora: bool = False, **fields: Any) -> Backend:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(ODD).to(dtype)
    model.model.register_buffer("plain", torch.arange(5.0))
    if lora:
        add_adapters(model, LoraConfig(rank=3, alpha=6.0), seed=1)
    backend = build_backend(model, PolicyConfig(num_workers=num_ranks, **fields), OptimConfig(), None)
    with torch.no_grad():  # master weights that the export rounds
        for parameter in backend.module.parameters():
            if parameter.requires_grad and not hasattr(parameter, "ds_id"):
                parameter.mul_(1.0 + 1e-3)
    return backend


def gather_one_by_one(backend: Backend) -> dict[str, Tensor]:
    state = {name: read_whole(held) for name, held in backend.module.state_dict(keep_vars=True).items()}
    return {name: held if is_adapter(name) else held.to(backend.dtype) for name, held in state.items()}


def read_whole(held: Any) -> Tensor:
    if not hasattr(held, "ds_id"):
        return held.full_tensor().detach() if isinstance(held, DTensor) else held.detach()
    import deepspeed

    with deepspeed.zero.GatheredParameters([held]):
        return held.detach().clone()


def check_same(backend: Backend, rank: int) -> None:
    expected, cpu = gather_one_by_one(backend), torch.device("cpu")
    with counted_gathers() as sizes:
        everywhere = dict(backend.full_state(place=cpu))
    whole = sum(held.nbytes for held in expected.values())
    assert len(sizes) < len(expected) / 2, "more than one tensor goes in a bucket"
    assert sum(sizes) < 1.5 * whole
    largest = max(held.nbytes for held in expected.values())
    assert max(sizes) <= max(BUCKET, 1.2 * largest)
    assert list(everywhere) == list(expected)
    for name, held in expected.items():
        assert everywhere[name].dtype == held.dtype and torch.equal(everywhere[name], held), name
        assert everywhere[name].untyped_storage().nbytes() <= 1.2 * held.nbytes + 100, "it keeps the bucket"
    on_first = dict(backend.full_state())
    assert on_first.keys() == (expected.keys() if rank == 0 else set())
    assert all(torch.equal(held, expected[name]) for name, held in on_first.items())
    norms = dict(backend.full_state(lambda name: "norm" in name, place=cpu))
    assert norms.keys() == {name for name in expected if "norm" in name}
    assert all(torch.equal(held, expected[name]) for name, held in norms.items())


@contextmanager
def counted_gathers() -> Iterator[list[int]]:
    """Record the bytes of each collective that gathers tensors."""
    gather_single, sizes = distributed.all_gather_single, list[int]()

    def count(out: Tensor, shard: Tensor, **fields: Any) -> Any:
        sizes.append(out.nbytes)
        return gather_single(out, shard, **fields)

    with mock.patch.object(distributed, "all_gather_single", count):
        yield sizes


KINDS: dict[str, list[tuple[torch.dtype, dict[str, Any]]]] = {
    "fsdp2": [
        (torch.float32, {}),
        (torch.bfloat16, {"lora": True}),
        (torch.bfloat16, {"offload": "all"}),
    ],
    "zero-3": [
        (torch.float32, {"backend": "deepspeed", "zero_stage": 3}),
        (torch.bfloat16, {"backend": "deepspeed", "zero_stage": 3, "lora": True}),
    ],
}


def _check_on_rank(rank: int, num_ranks: int, kind: str, port: int) -> None:
    init_process_group(rank, num_ranks, "127.0.0.1", port, 300)
    gather.BUCKET_BYTES = BUCKET
    for dtype, fields in KINDS[kind]:
        check_same(build(dtype, num_ranks, **fields), rank)
    leave_process_group()


@pytest.mark.parametrize(
    ("num_ranks", "kind"),
    [(2, "fsdp2"), pytest.param(3, "fsdp2", marks=pytest.mark.slow), pytest.param(3, "zero-3", marks=pytest.mark.slow)],
)
def test_bucketed_gather_is_bit_exact_in_few_collectives(num_ranks: int, kind: str) -> None:
    multiprocessing.spawn(_check_on_rank, (num_ranks, kind, free_port()), num_ranks)  # type: ignore[no-untyped-call]
