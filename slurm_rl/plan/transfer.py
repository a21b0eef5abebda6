"""Transport of new weights from the policy to the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_rl.config.model import MAX_LORA_RANKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.memory import GB
from slurm_rl.plan.role_memory import bytes_per_value

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.memory import ModelShape

ADAPTED = [
    *("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"),
    *("Gemma2ForCausalLM", "Gemma3ForCausalLM", "GraniteForCausalLM", "Phi3ForCausalLM"),
]
"""Models whose adapters vLLM applies exactly; tests/train/test_adapter_swap.py compares each with the policy."""


def choose_transfer(config: RunConfig, actors: Sequence[ActorPlan], shape: ModelShape | None = None) -> tuple[str, str]:
    """Return the transport (adapters, nccl, ipc, gloo or ray) and the reason.

    auto prefers adapters, then direct transfer between GPUs. On CPU, Ray's object store copies once per node and gloo
    once per engine. Engines that sample a fixed batch ahead accept weights after it; the policy, which needs that batch
    next, waits for it.

    Raises:
        ConfigError: adapters that vLLM cannot swap, or ipc with an engine on a GPU without a policy worker.
    """
    wanted, obstacle = config.rollout.weight_transfer, find_swap_obstacle(config, shape)
    if wanted == "adapters" and obstacle is not None and not config.eval.only:
        raise ConfigError(
            "rollout.weight_transfer=adapters needs adapters that vLLM can swap in its memory",
            seen=obstacle,
            action="rollout.weight_transfer=auto, which sends merged weights instead",
        )
    if swaps_adapters(config, shape):
        return "adapters", "vLLM swaps them in its memory; the base stays"
    transport, why = _choose_transport(config, actors)
    if config.model.lora is None or config.eval.only:
        return transport, why
    return transport, f"{why}; adapters are merged, since {obstacle or 'rollout.weight_transfer sends whole weights'}"


def swaps_adapters(config: RunConfig, shape: ModelShape | None) -> bool:
    """Return whether engines swap adapters and keep their base."""
    wanted = config.rollout.weight_transfer in ("auto", "adapters") and not config.eval.only
    return wanted and find_swap_obstacle(config, shape) is None


def find_swap_obstacle(config: RunConfig, shape: ModelShape | None) -> str | None:
    """Return why vLLM cannot swap the adapters, so that engines need merged weights; None if it can."""
    lora = config.model.lora
    if lora is None:
        return "model.lora=null"
    if lora.target_parameters:
        return "vLLM takes joined experts (model.lora.target_parameters) only merged"
    if shape is not None and shape.vision_parameters:
        return "vLLM's adapters of vision towers are not tested"
    if shape is None or not shape.architecture:
        # The key is the user's word that the model is supported.
        is_forced = config.rollout.weight_transfer == "adapters"
        return None if is_forced else "this machine does not see the model's config.json"
    if shape.architecture not in ADAPTED:
        return f"vLLM's adapters of {shape.architecture} are not tested"
    if lora.max_rank > MAX_LORA_RANKS[-1]:
        return f"vLLM takes ranks up to {MAX_LORA_RANKS[-1]}, and the largest is {lora.max_rank}"
    if config.cluster.accelerator != "cpu" and config.model.dtype == "float32":
        return "vLLM's kernels for adapters on GPUs take no float32"
    if "quantization" in config.rollout.engine_args:
        return "rollout.engine_args has quantization"
    return None


def _choose_transport(config: RunConfig, actors: Sequence[ActorPlan]) -> tuple[str, str]:
    """Return the transport of whole weights."""
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
    if wanted not in ("auto", "adapters"):  # an evaluation sends none
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
    if shape is None or not config.has_engines or config.eval.only:
        return
    if config.cluster.accelerator == "cpu":
        return
    size, store = shape.num_parameters * bytes_per_value(config) / GB, config.ray.object_store_gb
    if choose_transfer(config, actors, shape)[0] == "ray" and size > store:
        raise ConfigError(
            "ray.object_store_gb must hold the policy's weights with rollout.weight_transfer=ray",
            seen=f"{size:.1f} GB > {store:g} GB",
            action="rollout.weight_transfer=auto, or raise ray.object_store_gb",
        )
