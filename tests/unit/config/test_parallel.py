"""One noun for how ranks share a model, whoever asks: the plan's memory, the engine, its device mesh."""

from __future__ import annotations

import math

import pytest

from slurm_rl.config.parallel import ParallelDims, build_parallel_dims
from slurm_rl.config.train import PolicyConfig


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 64])
@pytest.mark.parametrize(
    ("backend", "stage", "is_cut"), [("fsdp2", 0, True)] + [("deepspeed", s, s == 3) for s in range(4)]
)
def test_the_mesh_has_every_rank_and_cuts_where_the_backend_does(
    num_ranks: int, backend: str, stage: int, is_cut: bool
) -> None:
    fields = {"backend": backend} | ({"zero_stage": stage} if backend == "deepspeed" else {})
    dims = build_parallel_dims(PolicyConfig.model_validate(fields), num_ranks)
    assert (dims.shard, dims.replicate) == ((num_ranks, 1) if is_cut else (1, num_ranks))
    assert math.prod(dims.mesh_shape.values()) == num_ranks


def test_a_size_that_is_given_is_a_dimension_of_the_mesh() -> None:
    assert ParallelDims(2, 4, context=2).mesh_shape == {"replicate": 2, "shard": 4, "context": 2}
    assert ParallelDims(1, 1).mesh_shape == {"shard": 1}
