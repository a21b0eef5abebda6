"""Transport of new weights from the policy to the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.memory import GB
from slurm_rl.plan.role_memory import bytes_per_value

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.memory import ModelShape


def choose_transfer(config: RunConfig, actors: Sequence[ActorPlan]) -> tuple[str, str]:
    """Return the transport (nccl, ipc, gloo or ray) and the reason; auto prefers direct transfer between GPUs.

    On CPU, Ray's object store copies once per node and gloo once per engine. Engines that sample a fixed batch ahead
    accept weights after it; the policy, which needs that batch next, waits for it.

    Raises:
        ConfigError: ipc with an engine on a GPU without a policy worker.
    """
    wanted, rollout = config.rollout.weight_transfer, config.rollout
    with_policy = {(actor.node, gpu) for actor in actors if actor.role == "policy" for gpu in actor.gpus}
    unshared = [
        (actor.node, gpu)
        for actor in actors
        if actor.role == "rollout"
        for gpu in actor.gpus
        if (actor.node, gpu) not in with_policy
    ]
    if wanted == "ipc" and unshared:
        raise ConfigError(
            "rollout.weight_transfer=ipc needs a policy worker on each GPU of an engine",
            seen=f"none on GPU {unshared[0][1]} of node {unshared[0][0]}",
            action="rollout.weight_transfer=auto, or leave out policy.num_workers",
        )
    if wanted != "auto":
        return wanted, "as set"
    if config.cluster.accelerator == "cpu":
        return "ray", "without GPUs, once a node through host memory"
    if rollout.colocate and unshared:
        return "ray", "some engines are on GPUs without a policy worker"
    return ("ipc", "engines share the policy's GPUs") if rollout.colocate else ("nccl", "from GPU to GPU")


def check_store(config: RunConfig, shape: ModelShape | None, actors: Sequence[ActorPlan]) -> None:
    """Raise ConfigError if new weights of a policy on GPUs go through an object store that is too small for them.

    On CPU, where models are small, Ray may spill them to disk.
    """
    if shape is None or config.model.lora is not None or not config.has_engines or config.eval.only:
        return
    if config.cluster.accelerator == "cpu":
        return
    size, store = shape.num_parameters * bytes_per_value(config) / GB, config.ray.object_store_gb
    if choose_transfer(config, actors)[0] == "ray" and size > store:
        raise ConfigError(
            "ray.object_store_gb must hold the policy's weights with rollout.weight_transfer=ray",
            seen=f"{size:.1f} GB > {store:g} GB",
            action="rollout.weight_transfer=auto, or raise ray.object_store_gb",
        )
