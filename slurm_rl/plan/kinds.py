"""Nodes of several kinds: how many there are, what each has, and which ranks they get. Pure, standard library alone.

cluster.nodes: {h100: {count: 2}, v100: {count: 1, gpus_per_node: 4}}  ->  ranks 0 and 1 are h100, rank 2 is v100
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the node agent imports this without pydantic
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.topology import ActorPlan


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one kind, whose ranks follow each other: one component of a heterogeneous job of Slurm.

    NodeKind("v100", 1, 4, None, 32.0, "all") is one node of four GPUs of 32 GB, with all of its cores and memory.
    """

    name: str
    count: int
    gpus_per_node: int
    cpus_per_node: int | None
    """None: Slurm's default."""
    gpu_mem_gb: float | None
    """Of one GPU, in GB (10^9 bytes); None: not known."""
    mem_gb_per_node: int | Literal["all"] | None
    """As Slurm counts them; None: Slurm's default."""


def list_kinds(config: RunConfig) -> tuple[NodeKind, ...]:
    """In the order of ranks: the head, where the driver is, is a node of the policy's kind, else one with GPUs.

    Empty where all nodes are alike.
    """
    cluster, first = config.cluster, config.policy.node_feature
    ordered = sorted(cluster.nodes, key=lambda name: (name != first, not cluster.gpus_of(name)))
    return tuple(
        NodeKind(
            name=name,
            count=kind.count,
            gpus_per_node=cluster.gpus_of(name),
            cpus_per_node=kind.cpus_per_node or cluster.cpus_per_node,
            gpu_mem_gb=kind.gpu_mem_gb or (cluster.gpu_mem_gb if kind.gpu_type is None else None),
            mem_gb_per_node=kind.mem_gb_per_node or cluster.mem_gb_per_node,
        )
        for name in ordered
        for kind in [cluster.nodes[name]]
    )


def kind_of(kinds: Sequence[NodeKind], rank: int) -> NodeKind:
    """The kind of the node with this rank.

    >>> two = [NodeKind("h100", 2, 8, None, 80.0, None), NodeKind("v100", 1, 4, None, 32.0, None)]
    >>> [kind_of(two, rank).name for rank in range(3)]
    ['h100', 'h100', 'v100']
    """
    return [kind for kind in kinds for _ in range(kind.count)][rank]


def gpu_memory(config: RunConfig, actors: Iterable[ActorPlan], role: str) -> float | None:
    """Of the smallest GPU that a process of this role has, in GB; None where one of them is not known."""
    kinds = list_kinds(config)
    if not kinds:
        return config.cluster.gpu_mem_gb
    sizes = [kind_of(kinds, actor.node).gpu_mem_gb for actor in actors if actor.role == role]
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def kinds_for(config: RunConfig, role: str) -> list[NodeKind]:
    """Those with GPUs on whose nodes a process of `policy`, `rollout`, `reference` or `critic` may run."""
    wanted = getattr(config, role).node_feature
    return [kind for kind in list_kinds(config) if kind.gpus_per_node and wanted in (None, kind.name)]
