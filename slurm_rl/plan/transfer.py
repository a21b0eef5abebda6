"""Which way new weights go from the policy to the engines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError
from slurm_rl.plan.topology import ActorPlan

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def choose_transfer(config: RunConfig, actors: Sequence[ActorPlan]) -> tuple[str, str]:
    """nccl, ipc, gloo or ray, and why: what rollout.weight_transfer says; for auto straight into the engines where that
    works.

    On CPU the way is Ray's store: gloo goes through host memory as well, and once for every engine in place of once for
    every node. An engine that samples ahead in fixed shares takes weights after its batch, and in the direct ways the
    policy would wait for that. Adapters alone would be little to send, but each rank of each engine would read the
    whole base from its files again, to merge them without drift; the policy has it on its GPUs.

    Raises:
        ConfigError: ipc with an engine on a GPU where no policy worker is, which would have no handle for it.
    """
    wanted, rollout = config.rollout.weight_transfer, config.rollout
    with_policy = {(actor.node, gpu) for actor in actors if actor.role == "policy" for gpu in actor.gpus}
    alone = [
        (actor.node, gpu)
        for actor in actors
        if actor.role == "rollout"
        for gpu in actor.gpus
        if (actor.node, gpu) not in with_policy
    ]
    if wanted == "ipc" and alone:
        raise ConfigError(
            "rollout.weight_transfer=ipc needs a policy worker on each GPU of an engine",
            seen=f"none on GPU {alone[0][1]} of node {alone[0][0]}",
            action="rollout.weight_transfer=auto, or leave out policy.num_workers",
        )
    if wanted != "auto":
        return wanted, "as set"
    in_shares = rollout.max_staleness > 0 and not rollout.continuous
    if config.cluster.accelerator == "cpu":
        return "ray", "without GPUs, once a node through host memory"
    if in_shares:
        return "ray", "engines sample ahead; the policy need not wait for their batch"
    if rollout.colocate and alone:
        return "ray", "some engines are on GPUs without a policy worker"
    return ("ipc", "engines share the policy's GPUs") if rollout.colocate else ("nccl", "from GPU to GPU")
