"""The nodes of a run in Ray: started by our agents, or reserved in an existing cluster."""

import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.node.ray_cluster import node_resource, parse_gpu_labels
from slurm_rl.node.stop import StopFlag
from slurm_rl.node.wait_for_ray_nodes import POLL_S, wait_for_nodes
from slurm_rl.plan.job import ActorPlan, JobPlan

_MOST_NODES = 8
RENDEZVOUS_PORTS = {"policy": "SLURM_RL_MASTER_PORT", "critic": "SLURM_RL_CRITIC_PORT"}
"""Role with a rendezvous -> environment variable with the free port that the agent found."""


class OwnRayNodes:
    """Nodes of our own Ray cluster; each has a resource named after its rank."""

    namespace: str | None = "slurm_rl"
    """Namespace of the actors' names."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.gpus: list[list[str]] = []
        self.cpus: list[int] = []

    def wait(self, deadline: float, stop: StopFlag) -> None:
        """Wait until all nodes joined; `deadline` by time.monotonic(). Raises BringUpError with the missing nodes."""
        import ray

        wait_for_nodes(self.plan, deadline, stop.check)
        nodes = find_ours(ray.nodes(), self.plan.num_nodes)
        self.gpus = [parse_gpu_labels(node.get("Labels", {})) for node in nodes]
        self.cpus = [int(node["Resources"].get("CPU", 1)) for node in nodes]

    def options(self, actor: ActorPlan) -> dict[str, Any]:
        """Return Ray's scheduling options that place an actor on its node."""
        return {"resources": {node_resource(actor.node): 0.001}}

    def gpu_names(self, actor: ActorPlan) -> list[str]:
        """Return the device indices of the actor's GPUs on its node."""
        return [self.gpus[actor.node][gpu] for gpu in actor.gpus]

    def num_cpus(self, node: int) -> int:
        """Return the number of our cores on that node."""
        return self.cpus[node]

    def host(self) -> str:
        """Return the address of the driver's node."""
        return os.environ["RAY_ADDRESS"].rpartition(":")[0]

    def rendezvous(self, role: str, node: int) -> tuple[str, int]:
        """Return the rendezvous of a role with rank 0 on `node`; port 0 if rank 0 must find a free one."""
        return self.host(), int(os.environ[RENDEZVOUS_PORTS[role]]) if node == 0 else 0


def find_ours(nodes: Sequence[Mapping[str, Any]], num_nodes: int) -> list[Mapping[str, Any]]:
    """Return the nodes of our agents, by rank.

    Args:
        nodes: from `ray.nodes()`; a node that rejoined may be listed twice, once as dead.
    """
    alive = [node for node in nodes if node["Alive"]]
    return [next(node for node in alive if node_resource(rank) in node["Resources"]) for rank in range(num_nodes)]


@dataclass(frozen=True)
class NodeFacts:
    """Facts about a node of an existing cluster."""

    name: str
    ip: str
    gpus: list[str]
    """Ray's ids of our GPUs there."""
    ports: dict[str, int]
    """Free port by role."""
    sees_run: bool
    """Whether the run directory is visible there."""


class NodeHolder:
    """Holds the GPUs of one node for the run. Runs as a Ray actor."""

    def describe(self, probe: Path) -> NodeFacts:
        import ray

        ip, context = ray.util.get_node_ip_address(), ray.get_runtime_context()
        gpus = [str(name) for name in context.get_accelerator_ids().get("GPU", [])]
        return NodeFacts(f"{socket.gethostname()} ({ip})", ip, gpus, _free_ports(RENDEZVOUS_PORTS), probe.is_file())


class SharedRayNodes:
    """Nodes of an existing cluster: a placement group reserves them, each with all resources of one node of the run.

    It waits until the resources are free, and is removed when the driver ends.
    """

    namespace: str | None = None  # a fresh one: several runs share the cluster

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.group: Any = None
        self.holders: list[Any] = []
        self.facts: list[NodeFacts] = []

    def wait(self, deadline: float, stop: StopFlag) -> None:
        import ray

        bundle = build_bundle(self.plan)
        self.group = ray.util.placement_group([bundle] * self.plan.num_nodes, strategy="STRICT_SPREAD")
        self._wait_for([self.group.ready()], bundle, deadline, stop)
        holder = ray.remote(NodeHolder)
        self.holders = [
            holder.options(num_cpus=0, num_gpus=self.plan.gpus_per_node, scheduling_strategy=self._on(rank)).remote()
            for rank in range(self.plan.num_nodes)
        ]
        probe = Path(self.plan.run_dir) / f".seen-{secrets.token_hex(4)}"
        probe.touch()
        try:
            answers = [holder.describe.remote(probe) for holder in self.holders]
            self._wait_for(answers, bundle, deadline, stop)
            self.facts = ray.get(answers)
        finally:
            probe.unlink()
        check_all_see(self.facts, self.plan.run_dir)

    def _wait_for(self, references: list[Any], bundle: dict[str, float], deadline: float, stop: StopFlag) -> None:
        import ray

        while ray.wait(references, num_returns=len(references), timeout=POLL_S)[1]:
            stop.check()
            if time.monotonic() > deadline:
                wanted = ", ".join(f"{count:g} {name}" for name, count in bundle.items())
                raise BringUpError(
                    f"the Ray cluster must have {self.plan.num_nodes} nodes with {wanted} free before "
                    "job.start_timeout_s",
                    seen=describe_nodes(ray.nodes()),
                    action="request less (cluster.num_nodes, cpus_per_node, gpus_per_node), wait, or add nodes to it",
                )

    def _on(self, rank: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=rank)

    def options(self, actor: ActorPlan) -> dict[str, Any]:
        return {"scheduling_strategy": self._on(actor.node)}

    def gpu_names(self, actor: ActorPlan) -> list[str]:
        names = self.facts[actor.node].gpus
        return [names[gpu] for gpu in actor.gpus]

    def num_cpus(self, node: int) -> int:
        return int(build_bundle(self.plan)["CPU"])

    def host(self) -> str:
        import ray

        return str(ray.util.get_node_ip_address())

    def rendezvous(self, role: str, node: int) -> tuple[str, int]:
        return self.facts[node].ip, self.facts[node].ports[role]


def build_bundle(plan: JobPlan) -> dict[str, float]:
    """Return the resources that one node must have free, in Ray's terms.

    >>> from types import SimpleNamespace as plan
    >>> build_bundle(plan(cpus_per_node=None, gpus_per_node=8)), build_bundle(plan(cpus_per_node=4, gpus_per_node=0))
    ({'CPU': 1, 'GPU': 8}, {'CPU': 4})
    """
    gpus = {"GPU": plan.gpus_per_node} if plan.gpus_per_node else {}
    return {"CPU": plan.cpus_per_node or 1, **gpus}


def describe_nodes(nodes: Sequence[dict[str, Any]]) -> str:
    """Return the nodes of `ray.nodes()` as text.

    >>> describe_nodes([{"Alive": True, "NodeManagerHostname": "head", "Resources": {"CPU": 2.0}}])
    'nodes in all, free or taken: head (2 CPU, 0 GPU)'
    """
    alive = [node for node in nodes if node["Alive"]]
    sizes = [(node["NodeManagerHostname"], node["Resources"]) for node in alive[:_MOST_NODES]]
    held = [f"{name} ({has.get('CPU', 0):g} CPU, {has.get('GPU', 0):g} GPU)" for name, has in sizes]
    more = [f"and {len(alive) - _MOST_NODES} more"] if len(alive) > _MOST_NODES else []
    return f"nodes in all, free or taken: {', '.join([*held, *more]) or 'none'}"


def check_all_see(facts: Sequence[NodeFacts], run_dir: str) -> None:
    """Check that all nodes see the run directory, which workers read and write.

    Raises:
        ConfigError: some nodes do not see it; the message names them.
    """
    blind = [node.name for node in facts if not node.sees_run]
    if blind:
        raise ConfigError(
            f"every node of the Ray cluster must see the run directory {run_dir}",
            seen=f"not there on {', '.join(blind)}",
            action="set cluster.remote_root to a folder that all of them see: NFS, a volume, a mounted bucket",
        )


def _free_ports(roles: dict[str, str]) -> dict[str, int]:
    with ExitStack() as stack:
        sockets = {role: stack.enter_context(socket.socket()) for role in roles}
        for probe in sockets.values():
            probe.bind(("", 0))
        return {role: int(probe.getsockname()[1]) for role, probe in sockets.items()}


def find_address() -> tuple[str, int]:
    """Return the address of this node in the Ray cluster, and a free port."""
    import ray

    return ray.util.get_node_ip_address(), _free_ports({"here": ""})["here"]
