"""Place processes on nodes and GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.node_groups import group_of, list_groups
from slurm_rl.plan.resources import Demand, build_demand

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig


def place_actors(config: RunConfig, cpus: int | None, tensor_parallel_size: int) -> tuple[ActorPlan, ...]:
    """Place all processes; an external program places its own.

    Raises:
        ConfigError: they do not fit, or GPUs stay idle.
    """
    if config.external:
        return ()
    demand = build_demand(config, cpus, tensor_parallel_size)
    if config.eval.only:
        return place_engines(demand)
    actors = place_ranks(demand) if config.task in TORCHRUN_TASKS else build_placement(demand)
    check_idle(demand, actors)
    return actors


def build_placement(demand: Demand) -> tuple[ActorPlan, ...]:
    """Place every actor, or raise ConfigError with both numbers if the layout is impossible.

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
    # A shared critic takes turns with the policy worker on its GPU.
    return actors + tuple(replace(actor, role="critic") for actor in actors if actor.role == "policy")


def place_engines(demand: Demand) -> tuple[ActorPlan, ...]:
    """Place rollout engines, on all GPUs unless num_engines is set, and reward services, without a policy.

    >>> [(a.role, a.node, a.gpus) for a in place_engines(Demand(1, 4, None, None, None, None, 2, False))]
    [('rollout', 0, (0, 1)), ('rollout', 0, (2, 3))]
    """
    # Place as with a colocated policy, then drop the policy.
    engines = replace(
        demand,
        num_workers=None,
        colocate=True,
        has_critic=False,
        num_critics=0,
        num_references=0,
        group_of_role={"rollout": demand.group_of_role.get("rollout")},
    )
    return tuple(actor for actor in build_placement(engines) if actor.role in ("rollout", "reward"))


def place_ranks(demand: Demand) -> tuple[ActorPlan, ...]:
    """Place torchrun's ranks, equally many per node with a GPU each, numbered across nodes.

    Raises:
        ConfigError: policy.num_workers does not divide evenly or exceeds the GPUs.

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
            + ("every GPU" if gpus else "one rank per node"),
        )
    threads = demand.worker_threads or (None if gpus else _share_cores(demand, 0, per_node))
    return tuple(
        ActorPlan("policy", rank, rank // per_node, (rank % per_node,) if gpus else (), threads)
        for rank in range(num_ranks)
    )


def _choose_num_workers(demand: Demand, num_slots: int) -> int:
    """Return all GPUs of the policy's nodes, or half of them, in whole engines, if engines need the rest."""
    separate = demand.group_of_role.get("policy") != demand.group_of_role.get("rollout")
    if num_slots <= 1 or demand.colocate or separate:
        return max(num_slots, 1)
    return max(num_slots // 2 // demand.tensor_parallel_size * demand.tensor_parallel_size, 1)


def check_idle(demand: Demand, actors: Sequence[ActorPlan]) -> None:
    """Raise ConfigError if GPUs are idle, unless the number of workers or engines is set."""
    idle = find_idle(demand.gpus_by_node, actors)
    if not idle or (demand.num_workers, demand.num_engines) != (None, None):
        return
    gpus = " + ".join(f"{group.count} x {group.gpus_per_node} GPUs of {group.name}" for group in demand.groups)
    raise ConfigError(
        "every GPU must be used",
        seen=f"{len(idle)} of {sum(demand.gpus_by_node)} without "
        f"({gpus or f'{demand.num_nodes} nodes x {demand.gpus_per_node} GPUs'}, "
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
    groups = list_groups(config)
    if not groups:
        return config.cluster.gpu_mem_gb
    sizes = [group_of(groups, actor.node).gpu_mem_gb for actor in actors if actor.role == role]
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
    policy_load, engine_load = (both, both) if demand.overlaps else (policy_nodes, engine_nodes)
    policy = [
        ActorPlan("policy", i, node, (), demand.worker_threads or _share_cores(demand, node, policy_load.count(node)))
        for i, node in enumerate(policy_nodes)
    ]
    rollout = [
        ActorPlan("rollout", i, node, (), _share_cores(demand, node, engine_load.count(node)))
        for i, node in enumerate(engine_nodes)
    ]
    num_critics = num_workers if demand.num_critics is None else demand.num_critics
    critics, references = _spread(demand, "critic", num_critics), _spread(demand, "reference", demand.num_references)
    return (*policy, *rollout, *critics, *references)


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
    cpus = demand.cpus_on(node)
    return None if cpus is None else max(1, cpus // num_on_node)


def _place_on_gpus(demand: Demand) -> tuple[ActorPlan, ...]:
    # Roles that may be bound to a node group choose first.
    services = _last_slots(demand, "reward", demand.num_services if demand.services_on_gpus else 0, ())
    references = _last_slots(demand, "reference", demand.num_references, services)
    num_critics = demand.num_critics
    if num_critics is None:
        num_critics = demand.num_workers or _choose_num_critics(demand, [*services, *references])
    critics = _last_slots(demand, "critic", num_critics, [*services, *references])
    dedicated = [*services, *references, *critics]
    at_policy = _slots(demand, "policy", dedicated)
    num_workers = demand.num_workers or (
        num_critics if demand.num_critics is None else _choose_num_workers(demand, len(at_policy))
    )
    if num_workers > len(at_policy):
        raise _too_many("policy.num_workers", num_workers, "policy", demand)
    policy = at_policy[:num_workers]
    free = _slots(demand, "rollout", [*dedicated, *([] if demand.colocate else policy)])
    engines = list(_split_into_engines(free, demand.tensor_parallel_size))
    num_engines = len(engines) if demand.num_engines is None else demand.num_engines
    if not engines or len(engines) < num_engines:
        raise ConfigError(
            "the allocation must hold policy.num_workers GPUs"
            + ("" if demand.colocate else " and in addition")
            + " rollout.num_engines groups of rollout.tensor_parallel_size GPUs, each on one node",
            seen=f"{sum(demand.gpus_by_node)} GPUs on {demand.num_nodes} nodes, {num_workers} workers, "
            f"{max(num_engines, 1)} engines of {demand.tensor_parallel_size}, room for {len(engines)} engines",
            action="lower policy.num_workers or rollout.num_engines, ask for more nodes, or set rollout.colocate=true",
        )
    slots = {"policy": policy, "critic": critics, "reference": references, "reward": services}
    workers = {
        role: [ActorPlan(role, i, node, (gpu,), demand.worker_threads) for i, (node, gpu) in enumerate(role_slots)]
        for role, role_slots in slots.items()
    }
    rollout = [ActorPlan("rollout", i, node, gpus, None) for i, (node, gpus) in enumerate(engines[:num_engines])]
    return (*workers["policy"], *rollout, *workers["critic"], *workers["reference"], *workers["reward"])


def _choose_num_critics(demand: Demand, taken: Sequence[tuple[int, int]]) -> int:
    """Give policy and critic half each of the GPUs that train: a quarter of all each, as in OpenRLHF's layout."""
    num_slots = len(_slots(demand, "policy", taken))
    roles = ["policy", "critic", *([] if demand.colocate else ["engines"])]
    if num_slots < len(roles):
        raise ConfigError(
            f"{', '.join(roles)} must have a GPU each",
            seen=f"{num_slots} GPUs for {len(roles)}",
            action="take more GPUs, critic.dedicated_gpus=false"
            + ("" if demand.colocate else ", or rollout.colocate=true"),
        )
    return max(_choose_num_workers(demand, num_slots) // 2, 1)


def _last_slots(demand: Demand, role: str, count: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the last free slots of a role, or raise ConfigError if there are fewer than `count`."""
    found = _slots(demand, role, taken)[-count:] if count else []
    if len(found) < count:
        key = "reward.service.num_replicas" if role == "reward" else f"{role}.num_workers"
        raise _too_many(key, count, role, demand)
    return found


def _slots(demand: Demand, role: str, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the free (node, GPU) pairs that the role may use."""
    used = set(taken)
    slots = ((node, gpu) for node in demand.nodes_for(role) for gpu in range(demand.gpus_on(node)))
    return [slot for slot in slots if slot not in used]


def _too_many(key: str, wanted: int, role: str, demand: Demand) -> ConfigError:
    allowed, group = demand.nodes_for(role), demand.group_of_role.get(role)
    numbers = {demand.gpus_on(node) for node in allowed}
    room = f"{len(allowed)} * {numbers.pop()}" if len(numbers) == 1 else str(sum(map(demand.gpus_on, allowed)))
    return ConfigError(
        f"{key} must be <= "
        + (f"the nodes with {group}" if group else "cluster.num_nodes")
        + " * cluster.gpus_per_node",
        seen=f"{wanted} > {room}",
        action=f"lower {key} or ask for more nodes",
    )


def _split_into_engines(slots: list[tuple[int, int]], size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (node, GPUs) of each group of `size` slots on one node."""
    for node, on_node in groupby(sorted(slots), key=itemgetter(0)):
        gpus = [gpu for _, gpu in on_node]
        for start in range(0, len(gpus) - size + 1, size):
            yield node, tuple(gpus[start : start + size])
