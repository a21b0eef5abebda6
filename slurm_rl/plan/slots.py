"""The GPUs of a run, and those of a role: free ones, and the last ones for roles with GPUs of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError
from slurm_rl.plan.node_groups import NodeGroup

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig


@dataclass(frozen=True)
class Demand:
    """The processes of a config, and the nodes that it has for them."""

    config: RunConfig
    nodes: list[NodeGroup]
    """Group of each node, by rank."""
    tensor_parallel_size: int

    @property
    def gpus_by_node(self) -> list[int]:
        return [node.gpus_per_node for node in self.nodes]

    @property
    def num_critics(self) -> int | None:
        """Processes of a dedicated critic; None: as many as the policy's."""
        return self.config.critic.num_workers if self.config.has_critic and self.config.critic.is_dedicated else 0

    def group_of_role(self, role: str) -> str | None:
        """Return the group that the role must run on."""
        name: str | None = (
            self.config.reward.placed_group if role == "reward" else getattr(self.config, role).node_group
        )
        return name

    def nodes_for(self, role: str) -> list[int]:
        """Return the ranks of the nodes that the role may run on."""
        wanted = self.group_of_role(role)
        return [rank for rank, node in enumerate(self.nodes) if wanted in (None, node.name)]


def last_hosts(demand: Demand) -> list[tuple[int, tuple[int, ...]]]:
    """Return (node, GPUs) of each reward service or server of a judge, at the end of their nodes."""
    reward, server = demand.config.reward, demand.config.reward.judge.server
    size = server.tensor_parallel_size
    count = reward.num_service_gpus // size
    if not count:
        return []
    most = max(demand.gpus_by_node[node] for node in demand.nodes_for("reward"))
    if size > most:
        raise ConfigError(
            "reward.judge.server.tensor_parallel_size must be <= the GPUs of a node, which holds a whole server",
            seen=f"{size} > {most}",
            action="lower it, or choose nodes with more GPUs",
        )
    found = list(split_into_engines(free_slots(demand, "reward", ()), size))[-count:]
    if len(found) < count:
        key = "reward.service.num_replicas"
        if server.model is not None:
            key = f"reward.judge.server.num_replicas{' * tensor_parallel_size' * (size > 1)}"
        raise too_many(key, count * size, "reward", demand)
    return found


def last_slots(demand: Demand, role: str, count: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the last free slots of a role, or raise ConfigError if there are fewer than `count`."""
    found = free_slots(demand, role, taken)[-count:] if count else []
    if len(found) < count:
        raise too_many(f"{role}.num_workers", count, role, demand)
    return found


def free_slots(demand: Demand, role: str, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the free (node, GPU) pairs that the role may use."""
    used, gpus = set(taken), demand.gpus_by_node
    slots = ((node, gpu) for node in demand.nodes_for(role) for gpu in range(gpus[node]))
    return [slot for slot in slots if slot not in used]


def too_many(key: str, wanted: int, role: str, demand: Demand, taken: Sequence[tuple[int, int]] = ()) -> ConfigError:
    gpus, group = [demand.gpus_by_node[node] for node in demand.nodes_for(role)], demand.group_of_role(role)
    room = f"{len(gpus)} * {gpus[0]}" if len(set(gpus)) == 1 else str(sum(gpus))
    return ConfigError(
        f"{key} must be <= "
        + (f"the nodes with {group}" if group else "cluster.num_nodes")
        + " * cluster.gpus_per_node",
        seen=f"{wanted} > {room}" + (f", of which other roles have {len(taken)}" if taken else ""),
        action=f"lower {key} or ask for more nodes",
    )


def split_into_engines(slots: list[tuple[int, int]], size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (node, GPUs) of each group of `size` slots on one node."""
    for node, on_node in groupby(sorted(slots), key=itemgetter(0)):
        gpus = [gpu for _, gpu in on_node]
        for start in range(0, len(gpus) - size + 1, size):
            yield node, tuple(gpus[start : start + size])
