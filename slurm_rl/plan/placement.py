"""Place processes on nodes and GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.node_groups import list_groups, list_nodes
from slurm_rl.plan.slots import Demand, free_slots, last_hosts, last_slots, split_into_engines, too_many

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig


def place_actors(config: RunConfig, cpus: int | None, tensor_parallel_size: int) -> tuple[ActorPlan, ...]:
    """Place all processes; an external program places its own.

    Raises:
        ConfigError: they do not fit.
    """
    if config.external:
        return ()
    demand = Demand(config, list_nodes(config, cpus), tensor_parallel_size)
    if config.eval.only:
        return place_engines(demand)
    return place_ranks(demand) if config.task in TORCHRUN_TASKS else build_placement(demand)


def build_placement(demand: Demand) -> tuple[ActorPlan, ...]:
    """Place every actor, or raise ConfigError with both numbers if the layout is impossible."""
    config = demand.config
    most = max(demand.gpus_by_node[node] for node in demand.nodes_for("rollout"))
    if demand.tensor_parallel_size > max(most, 1):
        raise ConfigError(
            "rollout.tensor_parallel_size must be <= cluster.gpus_per_node (1 on CPU): an engine runs on one node",
            seen=f"{demand.tensor_parallel_size} > {most}",
            action="lower rollout.tensor_parallel_size",
        )
    on_gpus = any(demand.gpus_by_node)
    if not on_gpus:
        actors = _place_on_cpus(demand, config.policy.num_workers or 1, config.rollout.num_engines or 1)
    else:
        actors = _place_on_gpus(demand)
    if not (on_gpus and config.reward.services_on_gpus):
        actors += tuple(_spread(demand, "reward", config.reward.num_placed))
    if not config.has_critic or config.critic.is_dedicated:
        return actors
    # A shared critic takes turns with the policy worker on its GPU.
    return actors + tuple(replace(actor, role="critic") for actor in actors if actor.role == "policy")


def place_engines(demand: Demand) -> tuple[ActorPlan, ...]:
    """Place rollout engines, on all GPUs unless num_engines is set, and reward services, without a policy."""
    # Place as with a colocated policy, then drop the policy.
    engines = demand.config.with_values(
        algorithm={"advantage": "group_norm"},
        policy={"num_workers": None, "node_group": None},
        reference={"num_workers": None},
        rollout={"colocate": True},
    )
    actors = build_placement(replace(demand, config=engines))
    return tuple(actor for actor in actors if actor.role in ("rollout", "reward"))


def place_ranks(demand: Demand) -> tuple[ActorPlan, ...]:
    """Place torchrun's ranks, equally many per node with a GPU each, numbered across nodes.

    Raises:
        ConfigError: policy.num_workers does not divide evenly or exceeds the GPUs.
    """
    nodes, gpus, policy = len(demand.nodes), min(demand.gpus_by_node), demand.config.policy
    num_ranks = policy.num_workers or nodes * max(gpus, 1)
    per_node, rest = divmod(num_ranks, nodes)
    if rest or (gpus and per_node > gpus):
        limit = f", and at most {gpus} a node" if gpus else ""
        raise ConfigError(
            f"under torchrun policy.num_workers must be a multiple of cluster.num_nodes{limit}",
            seen=f"{num_ranks} workers on {nodes} nodes",
            action=f"policy.num_workers={nodes * max(min(per_node, gpus or per_node), 1)}, or null for "
            + ("every GPU" if gpus else "one rank per node"),
        )
    threads = policy.num_threads or (None if gpus else _share_cores(demand, 0, per_node))
    return tuple(
        ActorPlan("policy", rank, rank // per_node, (rank % per_node,) if gpus else (), threads)
        for rank in range(num_ranks)
    )


def _choose_num_workers(demand: Demand, num_slots: int) -> int:
    """Return all GPUs of the policy's nodes, or half of them, in whole engines, if engines need the rest."""
    separate = demand.group_of_role("policy") != demand.group_of_role("rollout")
    if num_slots <= 1 or demand.config.rollout.colocate or separate:
        return max(num_slots, 1)
    return max(num_slots // 2 // demand.tensor_parallel_size * demand.tensor_parallel_size, 1)


def check_idle(demand: Demand, actors: Sequence[ActorPlan]) -> None:
    """Raise ConfigError if GPUs are idle, unless the number of workers or engines is set."""
    idle, config = find_idle(demand.gpus_by_node, actors), demand.config
    if not idle or (config.policy.num_workers, config.rollout.num_engines) != (None, None):
        return
    gpus = " + ".join(f"{group.count} x {group.gpus_per_node} GPUs of {group.name}" for group in list_groups(config))
    raise ConfigError(
        "every GPU must be used",
        seen=f"{len(idle)} of {sum(demand.gpus_by_node)} without "
        f"({gpus or f'{len(demand.nodes)} nodes x {config.cluster.gpus_per_node} GPUs'}, "
        f"engines of {demand.tensor_parallel_size})",
        action="choose a rollout.tensor_parallel_size that divides the GPUs of a node, or another "
        "cluster.gpus_per_node; set policy.num_workers or rollout.num_engines to allow idle GPUs",
    )


def find_idle(gpus_by_node: Sequence[int], actors: Sequence[ActorPlan]) -> list[tuple[int, int]]:
    """Return (node, GPU) of each GPU without a process; `gpus_by_node` is indexed by rank."""
    used = {(actor.node, gpu) for actor in actors for gpu in actor.gpus}
    return [(node, gpu) for node, gpus in enumerate(gpus_by_node) for gpu in range(gpus) if (node, gpu) not in used]


def gpu_memory(config: RunConfig, actors: Iterable[ActorPlan], role: str) -> float | None:
    """Return the memory of the smallest GPU of a role, in GB; None if one is unknown."""
    nodes = list_nodes(config)
    sizes = [nodes[actor.node].gpu_mem_gb for actor in actors if actor.role == role]
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None


def count_workers_by_node(num_workers: int, num_nodes: int) -> list[int]:
    """Return the environment processes per node, the trainer's first, without nodes that have none.

    >>> count_workers_by_node(1, 4), count_workers_by_node(8, 3)
    ([1], [3, 3, 2])
    """
    each, rest = divmod(num_workers, num_nodes)
    return [count for count in (each + (node < rest) for node in range(num_nodes)) if count]


def _place_on_cpus(demand: Demand, num_workers: int, num_engines: int) -> tuple[ActorPlan, ...]:
    at_policy, at_engines = demand.nodes_for("policy"), demand.nodes_for("rollout")
    if at_policy == at_engines:
        # The policy takes the first nodes and engines the last, so that no node needs to do both.
        split = len(at_policy) - min(num_engines, len(at_policy) - 1)
        at_policy, at_engines = at_policy[:split], at_policy[split:] or at_policy
    policy_nodes = [at_policy[i * len(at_policy) // num_workers] for i in range(num_workers)]
    engine_nodes = [at_engines[i % len(at_engines)] for i in range(num_engines)]
    both = policy_nodes + engine_nodes
    overlaps, threads = demand.config.rollout.max_off_policy_steps > 0, demand.config.policy.num_threads
    policy_load, engine_load = (both, both) if overlaps else (policy_nodes, engine_nodes)
    policy = [
        ActorPlan("policy", i, node, (), threads or _share_cores(demand, node, policy_load.count(node)))
        for i, node in enumerate(policy_nodes)
    ]
    rollout = [
        ActorPlan("rollout", i, node, (), _share_cores(demand, node, engine_load.count(node)))
        for i, node in enumerate(engine_nodes)
    ]
    num_critics = num_workers if demand.num_critics is None else demand.num_critics
    references = _spread(demand, "reference", demand.config.reference.num_workers or 0)
    return (*policy, *rollout, *_spread(demand, "critic", num_critics), *references)


def _spread(demand: Demand, role: str, count: int) -> list[ActorPlan]:
    """Distribute processes round-robin over the nodes of the role."""
    allowed = demand.nodes_for(role)
    on_node = Counter(allowed[i % len(allowed)] for i in range(count))
    return [
        ActorPlan(role, i, node, (), _share_cores(demand, node, on_node[node]))
        for i, node in enumerate(allowed[i % len(allowed)] for i in range(count))
    ]


def _share_cores(demand: Demand, node: int, num_on_node: int) -> int | None:
    """Return the threads of each of several concurrent processes; oversubscribed cores make steps much slower."""
    cpus = demand.nodes[node].cpus_per_node
    return None if cpus is None else max(1, cpus // num_on_node)


def _place_on_gpus(demand: Demand) -> tuple[ActorPlan, ...]:
    config, rollout, wanted = demand.config, demand.config.rollout, demand.config.policy.num_workers
    # Roles that may be bound to a node group choose first.
    hosts = last_hosts(demand)
    services = [(node, gpu) for node, gpus in hosts for gpu in gpus]
    references = last_slots(demand, "reference", config.reference.num_workers or 0, services)
    num_critics = demand.num_critics
    if num_critics is None:
        num_critics = wanted or _choose_num_critics(demand, [*services, *references])
    critics = last_slots(demand, "critic", num_critics, [*services, *references])
    dedicated = [*services, *references, *critics]
    at_policy = free_slots(demand, "policy", dedicated)
    num_workers = wanted or (num_critics if demand.num_critics is None else _choose_num_workers(demand, len(at_policy)))
    if num_workers > len(at_policy):
        raise too_many("policy.num_workers", num_workers, "policy", demand, dedicated)
    policy = at_policy[:num_workers]
    free = free_slots(demand, "rollout", [*dedicated, *([] if rollout.colocate else policy)])
    engines = list(split_into_engines(free, demand.tensor_parallel_size))
    num_engines = len(engines) if rollout.num_engines is None else rollout.num_engines
    if not engines or len(engines) < num_engines:
        raise ConfigError(
            "the allocation must hold policy.num_workers GPUs"
            + ("" if rollout.colocate else " and in addition")
            + " rollout.num_engines groups of rollout.tensor_parallel_size GPUs, each on one node",
            seen=f"{sum(demand.gpus_by_node)} GPUs on {len(demand.nodes)} nodes, {num_workers} workers, "
            f"{max(num_engines, 1)} engines of {demand.tensor_parallel_size}, room for {len(engines)} engines",
            action="lower policy.num_workers or rollout.num_engines, ask for more nodes, or set "
            + ("rollout.max_off_policy_steps=0" if rollout.max_off_policy_steps else "rollout.colocate=true"),
        )
    slots = {"policy": policy, "critic": critics, "reference": references}
    workers = {
        role: [ActorPlan(role, i, node, (gpu,), config.policy.num_threads) for i, (node, gpu) in enumerate(role_slots)]
        for role, role_slots in slots.items()
    }
    placed = [ActorPlan("rollout", i, node, gpus, None) for i, (node, gpus) in enumerate(engines[:num_engines])]
    placed_services = [
        ActorPlan("reward", i, node, gpus, config.policy.num_threads) for i, (node, gpus) in enumerate(hosts)
    ]
    return (*workers["policy"], *placed, *workers["critic"], *workers["reference"], *placed_services)


def _choose_num_critics(demand: Demand, taken: Sequence[tuple[int, int]]) -> int:
    """Give policy and critic half each of the GPUs that train: a quarter of all each, as in OpenRLHF's layout."""
    num_slots, colocate = len(free_slots(demand, "policy", taken)), demand.config.rollout.colocate
    roles = ["policy", "critic", *([] if colocate else ["engines"])]
    if num_slots < len(roles):
        raise ConfigError(
            f"{', '.join(roles)} must have a GPU each",
            seen=f"{num_slots} GPUs for {len(roles)}",
            action="take more GPUs, critic.dedicated_gpus=false" + ("" if colocate else ", or rollout.colocate=true"),
        )
    return max(_choose_num_workers(demand, num_slots) // 2, 1)
