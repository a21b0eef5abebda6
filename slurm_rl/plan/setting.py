"""A config with its placement and GPU sizes: the memory of each role and phase."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.memory import ASLEEP_GB, GB, EngineMemory, ModelShape
from slurm_rl.plan.placement import gpu_memory
from slurm_rl.plan.policy_memory import PolicyMemory
from slurm_rl.plan.role_memory import bytes_per_value, critic_memory, engine_memory, policy_memory, reference_memory

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig

PHASES = ("load", "train", "sample", "sync", "save")
ENGINE_SHARE = 0.85
"""Largest share of a GPU for vLLM."""


@dataclass(frozen=True)
class Setting:
    """A config with its placement and GPU sizes, which determine memory."""

    config: RunConfig
    shape: ModelShape
    reference_shape: ModelShape
    """Shape of reference.path, or of the policy."""
    num_workers: Mapping[str, int]
    """Processes by role."""
    tensor_parallel_size: int
    capacities_gb: Mapping[str, float]
    """Memory of the smallest GPU of each role."""

    @property
    def colocated(self) -> bool:
        return bool(self.config.rollout.colocate) and self.config.has_engines

    @property
    def engine(self) -> EngineMemory:
        return engine_memory(self.config, self.shape, self.tensor_parallel_size)

    @property
    def bytes_per_value(self) -> int:
        return bytes_per_value(self.config)

    def cache_gb(self, tokens: float) -> float:
        """Return the KV cache of a sequence on one GPU of an engine."""
        return self.shape.cached_values(round(tokens), self.tensor_parallel_size) * self.bytes_per_value / GB

    def num_running(self, tokens: float) -> int:
        """Return how many sequences of this length an engine holds at once."""
        return int((self.engine_budget_gb - self.engine.awake_gb) / self.cache_gb(tokens))

    @property
    def engine_budget_gb(self) -> float:
        """Memory of a GPU that vLLM may use."""
        return self.capacities_gb["rollout"] * (self.config.rollout.gpu_memory_utilization or ENGINE_SHARE)

    def needs(self) -> dict[str, PolicyMemory]:
        """Return the memory of a worker of each role except the engines."""
        needs = {"policy": policy_memory(self.config, self.shape, self.reference_shape, self.num_workers["policy"])}
        if self.config.has_critic and self.config.critic.is_dedicated:
            needs["critic"] = critic_memory(self.config, self.shape, self.num_workers["critic"])
        if self.num_workers.get("reference"):
            needs["reference"] = reference_memory(self.config, self.reference_shape)
        return needs

    def rooms(self, role: str) -> dict[str, float]:
        """Return the available GPU memory by phase, without that of a colocated engine."""
        if role != "policy" or not self.colocated:
            return dict.fromkeys(PHASES, self.capacities_gb[role])
        taken = {"sample": self.engine_budget_gb, "sync": self.engine.awake_gb}
        return {phase: self.capacities_gb[role] - taken.get(phase, ASLEEP_GB) for phase in PHASES}

    def within(self, share: float) -> Setting:
        """Return the setting with a share of each GPU's memory."""
        return replace(self, capacities_gb={role: share * size for role, size in self.capacities_gb.items()})

    def with_(self, **sections: Mapping[str, Any]) -> Setting:
        """Return the setting with other values of keys, by section."""
        return replace(self, config=self.config.with_values(**sections))


def build_setting(
    config: RunConfig,
    shape: ModelShape,
    reference: ModelShape | None,
    actors: Sequence[ActorPlan],
    tensor_parallel_size: int,
) -> Setting:
    """Return the setting with open values; GPUs of unknown size have unlimited memory."""
    roles = Counter(actor.role for actor in actors)
    known = {role: math.inf if size is None else size for role, size in find_capacities(config, actors).items()}
    return Setting(config, shape, reference or shape, roles, tensor_parallel_size, known)


def find_capacities(config: RunConfig, actors: Sequence[ActorPlan]) -> dict[str, float | None]:
    """Return the memory of the smallest GPU of each role except reward services, in GB.

    None: unknown; infinite without GPUs.
    """
    roles = dict.fromkeys(["policy", *(actor.role for actor in actors if actor.role != "reward")])
    if not config.cluster.gpus_per_node:
        return dict.fromkeys(roles, math.inf)
    return {role: gpu_memory(config, actors, role) for role in roles}
