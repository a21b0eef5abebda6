"""Parts of a parameter on the meshes of a run, without its other ranks."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from slurm_rl.config.parallel import choose_shard_dim
from slurm_rl.config.train import PolicyConfig
from slurm_rl.models.meshes import open_meshes
from slurm_rl.models.shards import read_region, region_of

SHAPES = [(5,), (64, 3), (128, 24, 48), (128, 3072, 4096), (3, 5)]


@pytest.fixture(params=[(8, 1, 5), (256, 1, 77), (512, 2, 300), (96, 1, 0)])
def layout(request: pytest.FixtureRequest) -> Iterator[tuple[int, PolicyConfig]]:
    num_ranks, replicas, rank = request.param
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    yield rank, PolicyConfig(num_replicas=replicas)
    dist.destroy_process_group()


@pytest.mark.parametrize("shape", SHAPES)
def test_region_of_part_equals_that_of_torch(shape: tuple[int, ...], layout: tuple[int, PolicyConfig]) -> None:
    rank, policy = layout
    meshes = open_meshes(policy)
    placements = [Replicate()] * (meshes.dims.replicate > 1) + [Shard(choose_shard_dim(shape, meshes.num_parts))]
    local, offset = compute_local_shape_and_global_offset(shape, meshes.parameters, placements)
    region = region_of(shape, meshes.part, meshes.num_parts)
    assert tuple(one.stop - one.start for one in region) == tuple(local)
    if 0 not in local:
        assert tuple(one.start for one in region) == tuple(offset)
    assert meshes.is_first_replica == (rank < meshes.num_parts)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8, 16, 24])
@pytest.mark.parametrize("num_saved", [1, 2, 5, 16, 48])
def test_region_is_read_from_any_number_of_parts(num_saved: int, num_parts: int) -> None:
    """16 and 48 parts of eight experts are cut along another dimension than 2 or 5."""
    whole = torch.arange(8 * 48 * 6).view(8, 48, 6)
    saved = [whole[region_of(whole.shape, part, num_saved)] for part in range(num_saved)]
    for part in range(num_parts):
        region = region_of(whole.shape, part, num_parts)
        assert torch.equal(read_region(saved, whole.shape, region), whole[region])
