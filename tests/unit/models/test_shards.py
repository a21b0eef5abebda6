"""Shards of one rank."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from slurm_rl.models.shards import from_local, to_local


@pytest.fixture
def gpu_mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cuda", [0], _init_backend=False, _rank=0)
    dist.destroy_process_group()


def test_shard_of_gpu_mesh_stays_on_host(gpu_mesh: DeviceMesh) -> None:
    """With policy.offload=all FSDP refuses parameters on the GPU."""
    local = torch.ones(4, 2)
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    like = DTensor(torch.empty(4, 2), DTensorSpec(gpu_mesh, (Shard(0),), meta), requires_grad=False)
    made = from_local(local, like)
    assert made.device_mesh == gpu_mesh and to_local(made).data_ptr() == local.data_ptr()
