"""Parallelism of the ranks that train one model, used by the plan's memory estimate and the engine's device mesh.

Standard library only: the node agent reads plans.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_rl.config.train import PolicyConfig

HELD_GRADIENTS = 0.05
"""Largest share of the smallest device's memory for FSDP2 gradients that are not reduced yet."""


@dataclass(frozen=True)
class ParallelDims:
    """Sizes of the parallel dimensions; their product is the world size.

    >>> ParallelDims(replicate=2, shard=4).mesh_shape
    {'replicate': 2, 'shard': 4}

    Context, tensor and expert parallelism are 1 until an engine implements them.
    """

    replicate: int
    """Data-parallel replicas with identical parameters."""
    shard: int
    """Data-parallel ranks that each parameter is sharded over."""
    context: int = 1
    tensor: int = 1
    expert: int = 1

    @property
    def mesh_shape(self) -> dict[str, int]:
        """Device mesh dimensions by name, outermost first, without dimensions of size 1."""
        return {name: size for name, size in asdict(self).items() if size > 1} or {"shard": 1}


def build_parallel_dims(policy: PolicyConfig, num_ranks: int) -> ParallelDims:
    """Shard over all ranks with FSDP2 and ZeRO-3; replicate with the other ZeRO stages."""
    if policy.backend == "fsdp2" or policy.zero_stage == 3:
        return ParallelDims(1, num_ranks)
    return ParallelDims(num_ranks, 1)
