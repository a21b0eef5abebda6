"""What a config asks the planner of places for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.plan.kinds import list_kinds
from slurm_rl.plan.topology import ActorPlan, Demand, build_placement, check_idle, place_engines, place_ranks

if TYPE_CHECKING:  # the node agent imports this without pydantic
    from slurm_rl.config.run import RunConfig


def place_actors(config: RunConfig, cpus: int | None, tensor_parallel_size: int) -> tuple[ActorPlan, ...]:
    """All processes with their GPUs; ConfigError where they do not fit. An external program places its own."""
    if config.external:
        return ()
    demand = build_demand(config, cpus, tensor_parallel_size)
    if config.eval.only:
        return place_engines(demand)
    actors = place_ranks(demand) if config.task in TORCHRUN_TASKS else build_placement(demand)
    check_idle(demand, actors)
    return actors


def build_demand(config: RunConfig, cpus: int | None, tensor_parallel_size: int) -> Demand:
    """The processes of a run, and the nodes that each role may have.

    Args:
        cpus: cores of a node; None where Slurm decides.
    """
    return Demand(
        num_nodes=config.cluster.num_nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        cpus_per_node=cpus,
        num_workers=config.policy.num_workers,
        worker_threads=config.policy.num_threads,
        num_engines=config.rollout.num_engines,
        tensor_parallel_size=tensor_parallel_size,
        colocate=config.rollout.colocate,
        has_critic=config.algorithm.needs_values,
        num_critics=config.critic.num_workers if config.critic.is_apart and config.algorithm.needs_values else 0,
        num_references=config.reference.num_workers or 0,
        num_services=config.reward.num_placed if config.task == "grpo" else 0,
        services_on_gpus=config.reward.services_on_gpus,
        overlaps=config.rollout.max_staleness > 0,
        kinds=list_kinds(config),
        feature_of={
            "policy": config.policy.node_feature,
            "rollout": config.rollout.node_feature,
            "reference": config.reference.node_feature,
            "critic": config.critic.node_feature,
            "reward": config.reward.service.node_feature,
        },
    )
