"""Whether the reward model of a service fits the GPU that the plan gives it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError
from slurm_rl.plan.kinds import gpu_memory
from slurm_rl.plan.memory import GB, ModelShape
from slurm_rl.plan.role_memory import longest_tokens
from slurm_rl.plan.topology import ActorPlan

if TYPE_CHECKING:  # the node agent imports this without pydantic
    from slurm_rl.config.run import RunConfig

_PROCESS_GB = 1.0
"""Of each process that computes on a GPU: the CUDA context, kernels, what the allocator leaves unused."""


@dataclass(frozen=True)
class ServiceMemory:
    """Of one service's GPU, in GB. ServiceMemory(2, 16.1, 1.3, 32.0): two workers with a copy each, 36.8 of 32."""

    num_workers: int
    weights_gb: float
    passing_gb: float
    """Of a forward pass over reward.model.batch_size longest sequences."""
    gpu_gb: float
    """What the smallest GPU of a service has."""

    @property
    def total_gb(self) -> float:
        return self.num_workers * (self.weights_gb + self.passing_gb + _PROCESS_GB)


def fit_services(
    config: RunConfig, actors: Sequence[ActorPlan], reward_shape: ModelShape | None
) -> ServiceMemory | None:
    """What a service takes of its GPU; None where it has none, or where the model or the GPU is not known.

    Args:
        reward_shape: of reward.model.path, where this machine sees its config.json.

    Raises:
        ConfigError: it does not fit; the message holds both numbers.
    """
    capacity = gpu_memory(config, actors, "reward") if config.reward.services_on_gpus else None
    if capacity is None or reward_shape is None:
        return None
    reward, size = config.reward, 2 if config.reward.model.dtype == "bfloat16" else 4
    tokens = reward.model.batch_size * longest_tokens(config)
    # One output in place of a vocabulary; a block's activations at a time, as nothing is kept for a backward pass.
    weights = replace(reward_shape, is_tied=True).num_parameters * size
    passing = tokens * (12 * reward_shape.hidden_size + 4 * reward_shape.intermediate_size) * size
    found = ServiceMemory(reward.num_workers, weights / GB, passing / GB, capacity)
    if found.total_gb > capacity:
        raise ConfigError(
            "the reward models of a service must fit its GPU (gpu_mem_gb)",
            seen=f"{found.total_gb:.1f} GB > {capacity:.1f} GB: {describe_service(found)}",
            action="lower reward.num_workers or reward.model.batch_size, set reward.model.dtype=bfloat16, or take "
            "larger GPUs for reward.service.node_feature",
        )
    return found


def describe_service(memory: ServiceMemory) -> str:
    """`2 workers, each weights 16.1, activations 1.3 and 1.0 of its process`."""
    workers = "1 worker," if memory.num_workers == 1 else f"{memory.num_workers} workers, each"
    return (
        f"{workers} weights {memory.weights_gb:.1f}, activations {memory.passing_gb:.1f} and {_PROCESS_GB:.1f} of its "
        "process"
    )
