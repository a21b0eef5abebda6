"""Parallelism of the ranks that train one model, used by the plan's memory estimate and the engine's device meshes.

Standard library only: the node agent reads plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError

if TYPE_CHECKING:
    from slurm_rl.config.train import PolicyConfig

HELD_GRADIENTS = 0.05
"""Largest share of the smallest device's memory for FSDP2 gradients that are not reduced yet."""
_MAX_PADDING = 0.125


@dataclass(frozen=True)
class ParallelDims:
    """Sizes of the parallel dimensions; their product is the world size.

    >>> dims = ParallelDims(replicate=2, shard=4, context=2)
    >>> dims.num_ranks, dims.num_parts, dims.num_data
    (16, 8, 8)
    """

    replicate: int
    """Replicas with identical parameters."""
    shard: int
    """Ranks of a replica with different sequences."""
    context: int = 1
    """Ranks that share the tokens of each micro-batch."""

    @property
    def num_ranks(self) -> int:
        return self.replicate * self.num_parts

    @property
    def num_parts(self) -> int:
        """Ranks that each parameter is sharded over."""
        return self.shard * self.context

    @property
    def num_data(self) -> int:
        """Ranks, or groups of them, with micro-batches of their own."""
        return self.replicate * self.shard


def build_parallel_dims(policy: PolicyConfig, num_ranks: int) -> ParallelDims:
    """Return the dimensions of the backend: ZeRO-3 shards over all ranks, the other stages replicate.

    Raises:
        ConfigError: the configured dimensions do not divide the number of ranks.
    """
    if policy.backend == "deepspeed":
        return ParallelDims(1, num_ranks) if policy.zero_stage == 3 else ParallelDims(num_ranks, 1)
    replicas, context = policy.num_replicas, policy.context
    if num_ranks % (replicas * context):
        raise ConfigError(
            "policy.num_replicas * policy.context_parallel must divide the number of policy workers",
            seen=f"{replicas} * {context} with {num_ranks} workers",
            action="change one of them, or policy.num_workers",
        )
    return ParallelDims(replicas, num_ranks // (replicas * context), context)


def divides_heads(context: int, heads: int, kv_heads: int) -> bool:
    """Return whether the ranks of a context group can share the heads; fewer key-value heads are repeated."""
    return heads % context == 0 and (kv_heads % context == 0 or context % kv_heads == 0)


def require_divisible_heads(context: int, heads: int, kv_heads: int, most: int | None = None) -> None:
    """Raise ConfigError if the ranks of a context group cannot share the heads.

    Args:
        most: largest group, as many as a node has GPUs; None: no limit. Groups divide it.
    """
    if not divides_heads(context, heads, kv_heads):
        sizes = [size for size in range(2, heads + 1) if most is None or most % size == 0]
        fitting = [size for size in sizes if divides_heads(size, heads, kv_heads)]
        raise ConfigError(
            "policy.context_parallel must divide the model's attention heads, and divide its key-value heads or be a "
            "multiple of them",
            seen=f"{heads} and {kv_heads} heads over {context} ranks",
            action=f"choose one of {', '.join(map(str, [1, *fitting]))}",
        )


def choose_shard_dim(shape: Sequence[int], num_parts: int) -> int:
    """Return the dimension that a parameter is sharded along: the first one, unless it would be mostly padding.

    FSDP2 pads only the first dimension, so another one must come out even.

    >>> choose_shard_dim([128, 3072, 4096], 64), choose_shard_dim([128, 3072, 4096], 256)
    (0, 1)
    """
    padding = -shape[0] % num_parts
    even = (dim for dim in range(1, len(shape)) if shape[dim] % num_parts == 0)
    return 0 if padding <= _MAX_PADDING * shape[0] else next(even, 0)
