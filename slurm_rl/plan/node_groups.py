"""Node groups of a heterogeneous job: their sizes and ranks. Standard library only.

cluster.nodes: {h100: {count: 2}, v100: {count: 1, gpus_per_node: 4}}  ->  ranks 0 and 1 are h100, rank 2 is v100
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes with consecutive ranks: one component of a heterogeneous Slurm job.

    NodeGroup("v100", 1, 4, None, 32.0, "all") is one node with four 32 GB GPUs and all of its cores and memory.
    """

    name: str
    count: int
    gpus_per_node: int
    cpus_per_node: int | None
    """None: Slurm's default."""
    gpu_mem_gb: float | None
    """Memory of one GPU in GB (10^9 bytes); None: unknown."""
    mem_gb_per_node: int | Literal["all"] | None
    """Memory per node in Slurm's GB; None: Slurm's default."""


def list_groups(config: RunConfig) -> tuple[NodeGroup, ...]:
    """Return the node groups in rank order, empty if all nodes are equal.

    The head node, where the driver runs, belongs to the policy's group, or else to one with GPUs.
    """
    cluster, first = config.cluster, config.policy.node_group
    ordered = sorted(cluster.nodes, key=lambda name: (name != first, not cluster.gpus_of(name)))
    return tuple(
        NodeGroup(
            name=name,
            count=group.count,
            gpus_per_node=cluster.gpus_of(name),
            cpus_per_node=group.cpus_per_node or cluster.cpus_per_node,
            gpu_mem_gb=group.gpu_mem_gb or (cluster.gpu_mem_gb if group.gpu_type is None else None),
            mem_gb_per_node=group.mem_gb_per_node or cluster.mem_gb_per_node,
        )
        for name in ordered
        for group in [cluster.nodes[name]]
    )


def list_nodes(config: RunConfig, cpus: int | None = None) -> list[NodeGroup]:
    """Return the group of each node by rank; equal nodes are one group without a name, with `cpus` cores each."""
    cluster = config.cluster
    equal = NodeGroup("", cluster.num_nodes, cluster.gpus_per_node, cpus, cluster.gpu_mem_gb, cluster.mem_gb_per_node)
    return [group for group in list_groups(config) or (equal,) for _ in range(group.count)]


def group_of(groups: Sequence[NodeGroup], rank: int) -> NodeGroup:
    """Return the group of the node with this rank.

    >>> two = [NodeGroup("h100", 2, 8, None, 80.0, None), NodeGroup("v100", 1, 4, None, 32.0, None)]
    >>> [group_of(two, rank).name for rank in range(3)]
    ['h100', 'h100', 'v100']
    """
    return [group for group in groups for _ in range(group.count)][rank]


def groups_for(config: RunConfig, role: str) -> list[NodeGroup]:
    """Return the groups with GPUs that processes of `policy`, `rollout`, `reference` or `critic` may run on."""
    wanted = getattr(config, role).node_group
    return [group for group in list_groups(config) if group.gpus_per_node and wanted in (None, group.name)]
