"""How the ranks that train one model share it: from the config to the plan's memory and the engine's device mesh.

Standard library alone: the node agent reads plans.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_rl.config.train import PolicyConfig

HELD_GRADIENTS = 0.05
"""Share of the smallest device's memory that FSDP2's gradients may take that are not summed over ranks yet."""


@dataclass(frozen=True)
class ParallelDims:
    """Sizes whose product is the number of ranks.

    >>> ParallelDims(replicate=2, shard=4).mesh_shape
    {'replicate': 2, 'shard': 4}

    Context, tensor and expert are 1 until an engine splits by them: what does is to read its size here.
    """

    replicate: int
    """Ranks that hold the same parameters; each has data of its own."""
    shard: int
    """Parts that the parameters are cut into; each of their ranks has data of its own, too."""
    context: int = 1
    tensor: int = 1
    expert: int = 1

    @property
    def mesh_shape(self) -> dict[str, int]:
        """Dimensions of the device mesh by name, from the outermost on; those of one rank are left out."""
        return {name: size for name, size in asdict(self).items() if size > 1} or {"shard": 1}


def build_parallel_dims(policy: PolicyConfig, num_ranks: int) -> ParallelDims:
    """FSDP2 and ZeRO-3 cut the parameters over all ranks, the other stages of ZeRO copy them to each."""
    if policy.backend == "fsdp2" or policy.zero_stage == 3:
        return ParallelDims(1, num_ranks)
    return ParallelDims(num_ranks, 1)
