"""Device meshes of a model's ranks. No other file makes a mesh or counts the shards of a parameter.

    rank       0    1    2    3    4    5    6    7
    part       0    1    2    3    0    1    2    3      of each parameter, over shards and context ranks
    replica    0    0    0    0    1    1    1    1      only the first one writes checkpoints
    data       0    0    1    1    2    2    3    3      ranks of one number get the same micro-batches

Here are two replicas, each of two shards with a context group of two.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.parallel import ParallelDims, build_parallel_dims
from slurm_rl.config.train import PolicyConfig
from slurm_rl.models.distributed import get_device, get_rank, get_world_size

if TYPE_CHECKING:
    from slurm_rl.models.context import ContextGroup


@dataclass(frozen=True)
class Meshes:
    """Place of this rank in each parallel dimension."""

    dims: ParallelDims
    rank: int

    @property
    def num_parts(self) -> int:
        return self.dims.num_parts

    @property
    def part(self) -> int:
        """Index of this rank's part of each parameter."""
        return self.rank % self.num_parts

    @property
    def data_rank(self) -> int:
        """Number of this rank's micro-batches."""
        return self.rank // self.dims.context

    @property
    def is_first_replica(self) -> bool:
        return self.rank < self.num_parts

    @property
    def is_counted(self) -> bool:
        """Whether this rank adds to sums over ranks: the others of its context group have the same values."""
        return self.rank % self.dims.context == 0

    @cached_property
    def context_group(self) -> dist.ProcessGroup:
        """Ranks that share this rank's rows. Collective at the first use."""
        sizes = {"data": self.dims.num_data, "context": self.dims.context}
        mesh = init_device_mesh(get_device().type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        return mesh.get_group("context")

    def open_context(self, config: Any, *, has_images: bool) -> "ContextGroup | None":
        """Return the exchange of tokens for heads; raise ConfigError if a model of this config cannot take part."""
        size = self.dims.context
        if size == 1:
            return None
        from slurm_rl.models.context import ContextGroup, require_context

        require_context(config, size, has_images=has_images)
        return ContextGroup(self.context_group, self.rank % size, size)

    def choose_attention(self, model: ModelConfig) -> ModelConfig:
        """Return the model's config with the attention that exchanges heads, if it is needed."""
        return model if self.dims.context == 1 else model.model_copy(update={"attention": "varlen"})

    @cached_property
    def parameters(self) -> DeviceMesh:
        """Mesh of FSDP2: the parts, or replicas of them. Collective at the first use."""
        sizes = {"replicate": self.dims.replicate, "shard": self.num_parts}
        if self.dims.replicate == 1:
            del sizes["replicate"]
        return init_device_mesh(get_device().type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    @property
    def parts_group(self) -> dist.ProcessGroup | None:
        """Ranks that hold the parts of this rank's replica; None: all."""
        return self.parameters.get_group("shard") if self.dims.replicate > 1 else None


def open_meshes(policy: PolicyConfig) -> Meshes:
    """Return the meshes of the process group; models of equal dimensions share them."""
    world = dist.group.WORLD if dist.is_initialized() else None
    return _open(build_parallel_dims(policy, get_world_size()), get_rank(), world)


@cache
def _open(dims: ParallelDims, rank: int, _: Any) -> Meshes:
    return Meshes(dims, rank)
