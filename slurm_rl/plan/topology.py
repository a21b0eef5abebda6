"""Nodes x GPUs -> which process runs where. Pure: no machine is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter

from slurm_rl.errors import ConfigError
from slurm_rl.plan.kinds import NodeKind, kind_of


@dataclass(frozen=True)
class ActorPlan:
    """One process of the trainer: its role, its node and the GPUs it alone may see."""

    role: str
    """`policy` or `critic` (one data-parallel rank), `rollout` (one vLLM engine), `reference` (one frozen copy),
    `reward` (one reward service)."""
    index: int
    """Rank within the role."""
    node: int
    """Rank of the node it runs on."""
    gpus: tuple[int, ...]
    """Indices of the node's GPUs it uses; empty on CPU."""
    num_threads: int | None
    """CPU threads; None leaves the library's default."""


@dataclass(frozen=True)
class Demand:
    """What a run asks the planner for."""

    num_nodes: int
    gpus_per_node: int
    cpus_per_node: int | None
    num_workers: int | None
    """Policy workers; None lets the planner choose."""
    worker_threads: int | None
    num_engines: int | None
    """Rollout engines; None lets the planner choose."""
    tensor_parallel_size: int
    colocate: bool
    """Engines share the policy's GPUs."""
    has_critic: bool = False
    """A critic's worker shares the GPU of each of the policy's."""
    num_critics: int | None = 0
    """Processes that hold the critic apart from the policy; None: as many as the policy's; 0 with `has_critic`: on
    the GPU of each of the policy's."""
    num_references: int = 0
    """Processes that hold the reference apart from the policy."""
    num_services: int = 0
    """Reward services on nodes of their own choice."""
    services_on_gpus: bool = False
    """Each of them has a GPU."""
    overlaps: bool = False
    """Engines sample while the policy trains."""
    kinds: tuple[NodeKind, ...] = ()
    """Of the nodes, in the order of ranks; empty where all are alike."""
    feature_of: Mapping[str, str | None] = field(default_factory=dict)
    """Role -> the kind of nodes it must run on."""

    def nodes_for(self, role: str) -> list[int]:
        """Ranks of the nodes that the role may run on."""
        wanted = self.feature_of.get(role)
        names = [kind.name for kind in self.kinds for _ in range(kind.count)]
        return [node for node in range(self.num_nodes) if wanted is None or names[node] == wanted]

    def gpus_on(self, node: int) -> int:
        """GPUs of the node with this rank."""
        return kind_of(self.kinds, node).gpus_per_node if self.kinds else self.gpus_per_node

    def cpus_on(self, node: int) -> int | None:
        """Cores of the node with this rank; None where Slurm decides."""
        return kind_of(self.kinds, node).cpus_per_node if self.kinds else self.cpus_per_node

    @property
    def gpus_by_node(self) -> list[int]:
        return [self.gpus_on(node) for node in range(self.num_nodes)]


def build_placement(demand: Demand) -> tuple[ActorPlan, ...]:
    """Place every actor, or raise ConfigError with both numbers when the layout is impossible.

    >>> [(a.role, a.node, a.gpus) for a in build_placement(Demand(1, 4, None, 2, None, 1, 2, False))]
    [('policy', 0, (0,)), ('policy', 0, (1,)), ('rollout', 0, (2, 3))]
    """
    most = max(demand.gpus_on(node) for node in demand.nodes_for("rollout"))
    if demand.tensor_parallel_size > max(most, 1):
        raise ConfigError(
            "rollout.tensor_parallel_size must be <= cluster.gpus_per_node (1 on CPU): an engine runs on one node",
            seen=f"{demand.tensor_parallel_size} > {most}",
            action="lower rollout.tensor_parallel_size",
        )
    if not any(demand.gpus_by_node):
        actors = _place_on_cpus(demand, demand.num_workers or 1, demand.num_engines or 1)
    else:
        actors = _place_on_gpus(demand)
    if not demand.services_on_gpus:
        actors += tuple(_spread(demand, "reward", demand.num_services))
    if not demand.has_critic or demand.num_critics != 0:
        return actors
    # They take turns with the policy, so they may use what it uses.
    return actors + tuple(replace(actor, role="critic") for actor in actors if actor.role == "policy")


def place_engines(demand: Demand) -> tuple[ActorPlan, ...]:
    """Rollout engines, on all GPUs unless their number is said, and services; no policy.

    >>> [(a.role, a.node, a.gpus) for a in place_engines(Demand(1, 4, None, None, None, None, 2, False))]
    [('rollout', 0, (0, 1)), ('rollout', 0, (2, 3))]
    """
    # As beside a policy that shares their GPUs, which then is not there.
    alone = replace(
        demand, num_workers=None, colocate=True, has_critic=False, num_critics=0, num_references=0, feature_of={}
    )
    actors = build_placement(replace(alone, feature_of={"rollout": demand.feature_of.get("rollout")}))
    return tuple(actor for actor in actors if actor.role in ("rollout", "reward"))


def place_ranks(demand: Demand) -> tuple[ActorPlan, ...]:
    """The ranks that torchrun starts, equally many on every node, on a GPU each; rank r counts on over the nodes.

    Raises:
        ConfigError: policy.num_workers is no such number; the message holds both.

    >>> [(a.index, a.node, a.gpus) for a in place_ranks(Demand(2, 2, None, None, None, None, 1, False))]
    [(0, 0, (0,)), (1, 0, (1,)), (2, 1, (0,)), (3, 1, (1,))]
    """
    nodes, gpus = demand.num_nodes, min(demand.gpus_by_node)
    num_ranks = demand.num_workers or nodes * max(gpus, 1)
    per_node, rest = divmod(num_ranks, nodes)
    if rest or (gpus and per_node > gpus):
        limit = f", and at most {gpus} a node" if gpus else ""
        raise ConfigError(
            f"under torchrun policy.num_workers must be a multiple of cluster.num_nodes{limit}",
            seen=f"{num_ranks} workers on {nodes} nodes",
            action=f"policy.num_workers={nodes * max(min(per_node, gpus or per_node), 1)}, or null for "
            + ("every GPU" if gpus else "one rank a node"),
        )
    threads = demand.worker_threads or (None if gpus else _share(demand, 0, per_node))
    return tuple(
        ActorPlan("policy", rank, rank // per_node, (rank % per_node,) if gpus else (), threads)
        for rank in range(num_ranks)
    )


def _choose_num_workers(demand: Demand, num_slots: int) -> int:
    """All GPUs of the policy's nodes, or half of them where engines need the others."""
    apart = demand.feature_of.get("policy") != demand.feature_of.get("rollout")
    if num_slots <= 1 or demand.colocate or apart:
        return max(num_slots, 1)
    return max(num_slots // 2 // demand.tensor_parallel_size * demand.tensor_parallel_size, 1)


def _check_enough(demand: Demand, num_slots: int) -> None:
    roles = ["policy", "critic", *([] if demand.colocate else ["engines"])]
    if num_slots < len(roles):
        raise ConfigError(
            f"{', '.join(roles)} must have a GPU each",
            seen=f"{num_slots} GPUs for {len(roles)}",
            action="take more GPUs, critic.apart=false" + ("" if demand.colocate else ", or rollout.colocate=true"),
        )


def check_idle(demand: Demand, actors: Sequence[ActorPlan]) -> None:
    """Refuse a placement that leaves GPUs without work, unless the user said how many processes there are.

    Raises:
        ConfigError: with the number of GPUs that nobody uses.
    """
    idle = find_idle(demand.gpus_by_node, actors)
    is_meant = (demand.num_workers, demand.num_engines) != (None, None)
    if not idle or is_meant:
        return
    raise ConfigError(
        "every GPU must have work",
        seen=f"{len(idle)} of {sum(demand.gpus_by_node)} without "
        f"({_render_gpus(demand)}, engines of {demand.tensor_parallel_size})",
        action="choose a rollout.tensor_parallel_size that divides the GPUs of a node, or another "
        "cluster.gpus_per_node; policy.num_workers and rollout.num_engines say that they may be idle",
    )


def _render_gpus(demand: Demand) -> str:
    if not demand.kinds:
        return f"{demand.num_nodes} nodes x {demand.gpus_per_node} GPUs"
    return " + ".join(f"{kind.count} x {kind.gpus_per_node} GPUs of {kind.name}" for kind in demand.kinds)


def find_idle(gpus_by_node: Sequence[int], actors: Sequence[ActorPlan]) -> list[tuple[int, int]]:
    """(node, GPU) of each GPU that no process uses.

    Args:
        gpus_by_node: how many each node has, by rank.
    """
    used = {(actor.node, gpu) for actor in actors for gpu in actor.gpus}
    return [(node, gpu) for node, gpus in enumerate(gpus_by_node) for gpu in range(gpus) if (node, gpu) not in used]


def _place_on_cpus(demand: Demand, num_workers: int, num_engines: int) -> tuple[ActorPlan, ...]:
    at_policy, at_engines = demand.nodes_for("policy"), demand.nodes_for("rollout")
    if at_policy == at_engines:
        # Engines take the last nodes and the policy the first, so that no node does both by accident.
        num_apart = len(at_policy) - min(num_engines, len(at_policy) - 1)
        at_policy, at_engines = at_policy[:num_apart], at_policy[num_apart:] or at_policy
    policy_nodes = [at_policy[i * len(at_policy) // num_workers] for i in range(num_workers)]
    engine_nodes = [at_engines[i % len(at_engines)] for i in range(num_engines)]
    both = policy_nodes + engine_nodes
    at_once = (both, both) if demand.overlaps else (policy_nodes, engine_nodes)
    policy = [
        ActorPlan("policy", i, node, (), demand.worker_threads or _share(demand, node, at_once[0].count(node)))
        for i, node in enumerate(policy_nodes)
    ]
    rollout = [
        ActorPlan("rollout", i, node, (), _share(demand, node, at_once[1].count(node)))
        for i, node in enumerate(engine_nodes)
    ]
    return (
        *policy,
        *rollout,
        *_spread(demand, "critic", num_workers if demand.num_critics is None else demand.num_critics),
        *_spread(demand, "reference", demand.num_references),
    )


def deal_workers(num_workers: int, num_nodes: int) -> list[int]:
    """Processes for environments on each node, the trainer's first; nodes that would have none are left out.

    >>> deal_workers(1, 4), deal_workers(8, 3)
    ([1], [3, 3, 2])
    """
    each, rest = divmod(num_workers, num_nodes)
    return [count for count in (each + (node < rest) for node in range(num_nodes)) if count]


def _spread(demand: Demand, role: str, count: int) -> list[ActorPlan]:
    """Processes dealt out over the nodes that the role may have."""
    allowed = demand.nodes_for(role)
    nodes = [allowed[i % len(allowed)] for i in range(count)]
    return [ActorPlan(role, i, node, (), _share(demand, node, nodes.count(node))) for i, node in enumerate(nodes)]


def _share(demand: Demand, node: int, num_on_node: int) -> int | None:
    # Roles that take turns (the policy waits while engines sample) may each use every core. Those that work at once
    # must not: their threads would wait for each other, and a step on 2 cores took three times as long.
    cpus = demand.cpus_on(node)
    return None if cpus is None else max(1, cpus // num_on_node)


def _place_on_gpus(demand: Demand) -> tuple[ActorPlan, ...]:
    # The roles that are bound to nodes of one kind choose before those that take what is left.
    services = _last_slots(demand, "reward", demand.num_services if demand.services_on_gpus else 0, ())
    reference = _last_slots(demand, "reference", demand.num_references, services)
    num_critics = demand.num_critics
    if num_critics is None:
        num_slots = len(_slots(demand, "policy", [*services, *reference]))
        _check_enough(demand, num_slots)
        # When both are open, the policy and the critic have half of what trains each. Without colocation that is a
        # quarter of the GPUs, and half for engines, as in OpenRLHF's layout; one that does not divide goes to these.
        num_critics = demand.num_workers or max(_choose_num_workers(demand, num_slots) // 2, 1)
    critic = _last_slots(demand, "critic", num_critics, [*services, *reference])
    apart = [*services, *reference, *critic]
    at_policy = _slots(demand, "policy", apart)
    num_workers = demand.num_workers or (
        num_critics if demand.num_critics is None else _choose_num_workers(demand, len(at_policy))
    )
    if num_workers > len(at_policy):
        raise _too_many("policy.num_workers", num_workers, "policy", demand)
    policy = at_policy[:num_workers]
    free = _slots(demand, "rollout", [*apart, *([] if demand.colocate else policy)])
    groups = list(_groups_on_one_node(free, demand.tensor_parallel_size))
    num_engines = len(groups) if demand.num_engines is None else demand.num_engines
    if not groups or len(groups) < num_engines:
        raise ConfigError(
            "the allocation must hold policy.num_workers GPUs"
            + ("" if demand.colocate else " and beside them")
            + " rollout.num_engines groups of rollout.tensor_parallel_size GPUs, each on one node",
            seen=f"{sum(demand.gpus_by_node)} GPUs on {demand.num_nodes} nodes, {num_workers} workers, "
            f"{max(num_engines, 1)} engines of {demand.tensor_parallel_size}, room for {len(groups)} engines",
            action="lower policy.num_workers or rollout.num_engines, ask for more nodes, or set rollout.colocate=true",
        )
    threads = demand.worker_threads
    return (
        *(ActorPlan("policy", i, node, (gpu,), threads) for i, (node, gpu) in enumerate(policy)),
        *(ActorPlan("rollout", i, node, gpus, None) for i, (node, gpus) in enumerate(groups[:num_engines])),
        *(ActorPlan("critic", i, node, (gpu,), threads) for i, (node, gpu) in enumerate(critic)),
        *(ActorPlan("reference", i, node, (gpu,), threads) for i, (node, gpu) in enumerate(reference)),
        *(ActorPlan("reward", i, node, (gpu,), threads) for i, (node, gpu) in enumerate(services)),
    )


def _last_slots(demand: Demand, role: str, count: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """So many of the last free slots; ConfigError when there are fewer."""
    found = _slots(demand, role, taken)[-count:] if count else []
    if len(found) < count:
        key = "reward.service.num_replicas" if role == "reward" else f"{role}.num_workers"
        raise _too_many(key, count, role, demand)
    return found


def _slots(demand: Demand, role: str, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(node, GPU) pairs that the role may have."""
    used = set(taken)
    slots = ((node, gpu) for node in demand.nodes_for(role) for gpu in range(demand.gpus_on(node)))
    return [slot for slot in slots if slot not in used]


def _too_many(key: str, wanted: int, role: str, demand: Demand) -> ConfigError:
    allowed, feature = demand.nodes_for(role), demand.feature_of.get(role)
    numbers = {demand.gpus_on(node) for node in allowed}
    room = f"{len(allowed)} * {numbers.pop()}" if len(numbers) == 1 else str(sum(map(demand.gpus_on, allowed)))
    return ConfigError(
        f"{key} must be <= "
        + (f"the nodes with {feature}" if feature else "cluster.num_nodes")
        + " * cluster.gpus_per_node",
        seen=f"{wanted} > {room}",
        action=f"lower {key} or ask for more nodes",
    )


def _groups_on_one_node(slots: list[tuple[int, int]], size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    for node, on_node in groupby(sorted(slots), key=itemgetter(0)):
        gpus = [gpu for _, gpu in on_node]
        for start in range(0, len(gpus) - size + 1, size):
            yield node, tuple(gpus[start : start + size])
