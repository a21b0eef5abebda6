"""Processes that a run needs and the nodes it has: the input of placement.py. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slurm_rl.plan.node_groups import NodeGroup, group_of, list_groups

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig


@dataclass(frozen=True)
class Demand:
    """Nodes of a run and its processes by role."""

    num_nodes: int
    gpus_per_node: int
    cpus_per_node: int | None
    num_workers: int | None
    """Policy workers; None: the planner chooses."""
    worker_threads: int | None
    num_engines: int | None
    """Rollout engines; None: the planner chooses."""
    tensor_parallel_size: int
    colocate: bool
    """Engines share the policy's GPUs."""
    has_critic: bool = False
    """The run trains a critic."""
    num_critics: int | None = 0
    """Processes of a dedicated critic; None: as many as the policy's; 0 with `has_critic`: a critic process on the GPU
    of each policy worker."""
    num_references: int = 0
    """Processes of a dedicated reference model."""
    num_services: int = 0
    """Reward services that the plan places."""
    services_on_gpus: bool = False
    """Each service has a GPU."""
    overlaps: bool = False
    """Engines sample while the policy trains."""
    groups: tuple[NodeGroup, ...] = ()
    """Node groups in rank order; empty if all nodes are equal."""
    group_of_role: Mapping[str, str | None] = field(default_factory=dict)
    """Role -> node group that it must run on."""

    def nodes_for(self, role: str) -> list[int]:
        """Return the ranks of the nodes that the role may run on."""
        wanted = self.group_of_role.get(role)
        names = [group.name for group in self.groups for _ in range(group.count)]
        return [node for node in range(self.num_nodes) if wanted is None or names[node] == wanted]

    def gpus_on(self, node: int) -> int:
        """Return the GPUs of the node with this rank."""
        return group_of(self.groups, node).gpus_per_node if self.groups else self.gpus_per_node

    def cpus_on(self, node: int) -> int | None:
        """Return the cores of the node with this rank; None: Slurm decides."""
        return group_of(self.groups, node).cpus_per_node if self.groups else self.cpus_per_node

    @property
    def gpus_by_node(self) -> list[int]:
        return [self.gpus_on(node) for node in range(self.num_nodes)]


def build_demand(config: RunConfig, cpus: int | None, tensor_parallel_size: int) -> Demand:
    """Return the demand of a config; `cpus` are the cores of a node, None if Slurm decides."""
    critic, has_critic = config.critic, config.algorithm.needs_values
    return Demand(
        num_nodes=config.cluster.num_nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        cpus_per_node=cpus,
        num_workers=config.policy.num_workers,
        worker_threads=config.policy.num_threads,
        num_engines=config.rollout.num_engines,
        tensor_parallel_size=tensor_parallel_size,
        colocate=config.rollout.colocate,
        has_critic=has_critic,
        num_critics=critic.num_workers if critic.is_dedicated and has_critic else 0,
        num_references=config.reference.num_workers or 0,
        num_services=config.reward.num_placed if config.task == "grpo" else 0,
        services_on_gpus=config.reward.services_on_gpus,
        overlaps=config.rollout.max_off_policy_steps > 0,
        groups=list_groups(config),
        group_of_role={
            "policy": config.policy.node_group,
            "rollout": config.rollout.node_group,
            "reference": config.reference.node_group,
            "critic": critic.node_group,
            "reward": config.reward.service.node_group,
        },
    )
