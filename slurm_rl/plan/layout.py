"""Choose open sizes from the GPUs and the model's shape, and refuse layouts that cannot fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.fit import (
    ENGINE_SHARE,
    Setting,
    describe_nearest,
    fill_in,
    find_fitting,
    find_misfit,
    host_memory,
    list_choices,
)
from slurm_rl.plan.job import ActorPlan, LayoutPlan
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.node_groups import groups_for, list_nodes
from slurm_rl.plan.placement import gpu_memory
from slurm_rl.plan.policy_memory import PolicyMemory
from slurm_rl.plan.role_memory import DEFAULT_MICRO_BATCH_TOKENS, engine_memory
from slurm_rl.plan.transfer import choose_transfer

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes of vLLM's attention on CPU; tests/train/test_gloo_transfer.py compares with the installed vLLM."""
_FROZEN = {"policy": "reference", "critic": "reward model"}
"""Frozen model on the GPUs of each role."""
# Engine on the same GPU by phase; asleep in others.
_COLOCATED = {"sample": "a sampling engine", "sync": "an engine that loads weights"}


def choose_tensor_parallel_size(config: RunConfig, shape: ModelShape | None) -> int:
    """Return the configured size, or the fewest GPUs that hold an engine.

    Raises:
        ConfigError: it does not divide the heads, or no number of GPUs of a node holds an engine.
    """
    if config.task in TORCHRUN_TASKS:
        return 1
    wanted, groups = config.rollout.tensor_parallel_size, groups_for(config, "rollout")
    gpus = min((group.gpus_per_node for group in groups), default=config.cluster.gpus_per_node)
    if wanted is not None and shape is not None and shape.num_heads % wanted:
        raise ConfigError(
            "rollout.tensor_parallel_size must divide the model's attention heads",
            seen=f"{shape.num_heads} heads over {wanted} GPUs",
            action=f"choose one of {', '.join(str(size) for size in _sizes(shape, max(gpus, wanted)))}",
        )
    sizes_gb = [group.gpu_mem_gb for group in groups] or [config.cluster.gpu_mem_gb]
    memory = min((size for size in sizes_gb if size is not None), default=None)
    budget = None if memory is None else memory * (config.rollout.gpu_memory_utilization or ENGINE_SHARE)
    if shape is None or budget is None:
        return wanted or 1
    sizes = [wanted] if wanted else _sizes(shape, gpus)
    needs = {size: engine_memory(config, shape, size).least_gb for size in sizes}
    for size, need in needs.items():
        if need <= budget:
            return size
    size, need = min(needs.items(), key=lambda item: item[1])
    raise ConfigError(
        "a GPU of a rollout engine must hold its share of the weights and one longest sequence within "
        "cluster.gpu_mem_gb * rollout.gpu_memory_utilization",
        seen=f"{need:.1f} GB > {budget:.1f} GB with rollout.tensor_parallel_size={size}",
        action="raise rollout.tensor_parallel_size or gpu_memory_utilization, or shorten rollout.max_tokens",
    )


def _sizes(shape: ModelShape, gpus: int) -> list[int]:
    return [size for size in range(1, gpus + 1) if gpus % size == 0 and shape.num_heads % size == 0]


def check_context(config: RunConfig, shape: ModelShape | None) -> None:
    """Raise ConfigError if the longest sequence exceeds the model's context."""
    limit = None if shape is None else shape.context_length
    if limit is None or config.max_sequence_tokens <= limit:
        return
    keys, seen = "data.max_prompt_tokens + rollout.max_tokens", ""
    if config.task in TORCHRUN_TASKS:
        keys, seen = "supervised.max_tokens", f"{config.supervised.max_tokens} > {limit}"
    raise ConfigError(
        f"{keys} must be <= the model's max_position_embeddings",
        seen=seen or f"{config.data.max_prompt_tokens} + {config.rollout.max_tokens} > {limit}",
        action="lower them, or extend the context with model.rope_scaling, or use a model with a longer one",
    )


def check_heads(config: RunConfig, shape: ModelShape | None) -> None:
    """Raise ConfigError if vLLM's attention on CPU has no kernel for the model's head size."""
    size = shape.head_dim if shape else None
    if config.has_engines and config.cluster.accelerator == "cpu" and size is not None and size not in CPU_HEAD_SIZES:
        raise ConfigError(
            "without a GPU a rollout engine's attention heads must be of a size that vLLM has a kernel for: "
            + ", ".join(map(str, CPU_HEAD_SIZES)),
            seen=f"heads of {size}",
            action="choose another model, or use a GPU",
        )


def build_layout(
    config: RunConfig,
    shape: ModelShape | None,
    reference: ModelShape | None,
    actors: Sequence[ActorPlan],
    tensor_parallel_size: int,
) -> LayoutPlan:
    """Choose the fastest open sizes that fit in every phase of this placement.

    Args:
        reference: shape of reference.path; None: the policy's.

    Raises:
        ConfigError: a phase does not fit a GPU or a node; the message has both numbers and a change that fits.
    """
    on_cpu = not config.cluster.gpus_per_node
    if config.eval.only:
        # There are only engines, whose size was checked.
        return LayoutPlan(tensor_parallel_size, *_sizes_of(fill_in(config, sparing=False)))
    capacities = _capacities(config, actors)
    if shape is None or None in capacities.values():
        # Unknown memory: choose the settings that need the least.
        settled = fill_in(config, sparing=not on_cpu and config.model.path is not None)
        return LayoutPlan(tensor_parallel_size, *_sizes_of(settled), unknown=_explain_unknown(config, shape))
    setting = build_setting(config, shape, reference, actors, tensor_parallel_size)
    found = replace(setting, config=fill_in(config, sparing=False)) if on_cpu else find_fitting(setting)
    if found is None:
        raise _refuse(setting)
    hosts, nodes = _host_memory_by_node(found, actors), list_nodes(config)
    for node, phases in hosts.items():
        limit = nodes[node].mem_gb_per_node
        if isinstance(limit, int) and max(phases.values()) > limit:
            raise ConfigError(
                "host memory of a node must fit cluster.mem_gb_per_node",
                seen=f"{max(phases.values()):.1f} GB > {limit} GB: {describe_phases(phases)}",
                action="use nodes with more memory, more nodes, or a smaller model",
            )
    needs, engines = found.needs(), config.has_engines
    return LayoutPlan(
        tensor_parallel_size,
        *_sizes_of(found.config),
        gpu_mem_gb=None if on_cpu else found.capacities_gb["policy"],
        engine_budget_gb=found.engine_budget_gb if engines and not on_cpu else None,
        policy=needs["policy"],
        engine=found.engine if engines else None,
        critic=needs.get("critic"),
        reference=needs.get("reference"),
        capacities_gb={} if on_cpu else dict(found.capacities_gb),
        host_gb=max(hosts.values(), key=lambda phases: max(phases.values())),
    )


def build_setting(
    config: RunConfig,
    shape: ModelShape,
    reference: ModelShape | None,
    actors: Sequence[ActorPlan],
    tensor_parallel_size: int,
) -> Setting:
    """Return the setting with open values; GPUs of unknown size have unlimited memory."""
    roles = Counter(actor.role for actor in actors)
    known = {role: math.inf if size is None else size for role, size in _capacities(config, actors).items()}
    return Setting(config, shape, reference or shape, roles, tensor_parallel_size, known)


def _capacities(config: RunConfig, actors: Sequence[ActorPlan]) -> dict[str, float | None]:
    """Return the memory of the smallest GPU of each role except reward services, in GB.

    None: unknown; infinite without GPUs.
    """
    roles = dict.fromkeys(["policy", *(actor.role for actor in actors if actor.role != "reward")])
    if not config.cluster.gpus_per_node:
        return dict.fromkeys(roles, math.inf)
    return {role: gpu_memory(config, actors, role) for role in roles}


def _sizes_of(config: RunConfig) -> tuple[int, bool, int | None, float | None]:
    tokens, share = (
        config.policy.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS,
        config.rollout.gpu_memory_utilization,
    )
    return tokens, config.model.gradient_checkpointing is True, config.policy.chunk_tokens, share


def _host_memory_by_node(found: Setting, actors: Sequence[ActorPlan]) -> dict[int, dict[str, float]]:
    """Return host memory by rank of the node, then by phase."""
    nodes: dict[int, Counter[str]] = {}
    for actor in actors:
        nodes.setdefault(actor.node, Counter())[actor.role] += 1
    direct = choose_transfer(found.config, actors)[0] != "ray"
    return {node: host_memory(found, roles, is_head=node == 0, direct=direct) for node, roles in nodes.items()}


def _refuse(setting: Setting) -> ConfigError:
    """Return the error for the smallest setting: the phase that does not fit, and a change that does."""
    tried = list_choices(setting)[-1]
    misfit = find_misfit(tried)
    assert misfit is not None
    role, need = misfit.role, misfit.memory.phases_gb[misfit.phase]
    engine = _COLOCATED.get(misfit.phase, "a sleeping engine") if tried.colocated and role == "policy" else ""
    parts = describe_memory(role, misfit.memory)
    return ConfigError(
        f"a {role} worker must fit its GPU (cluster.gpu_mem_gb" + (f", together with {engine})" if engine else ")"),
        seen=f"{need:.1f} GB > {misfit.room_gb:.1f} GB in phase {misfit.phase}; in train: {parts}; "
        f"{setting.num_workers[role]} workers, micro-batches of {tried.config.policy.micro_batch_tokens} tokens",
        action=describe_nearest(setting),
    )


def _explain_unknown(config: RunConfig, shape: ModelShape | None) -> str:
    if shape is not None:
        return "how much memory a GPU has: cluster.gpu_mem_gb=80"
    name = config.model.path
    return f"the shape of {name}: python -m slurm_rl prepare model {name}, then model.path=<the folder it prints>"


def describe_memory(role: str, memory: PolicyMemory) -> str:
    """Return `weights 2.1, gathered 0.3, gradients 1.0, ...` without parts that are 0."""
    names = ("weights", "gathered", "gradients", "optimizer", "update", "activations", "logits")
    parts = {name: getattr(memory, f"{name}_gb") for name in names} | {_FROZEN.get(role, ""): memory.frozen_gb}
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if round(value, 1))


def describe_phases(phases: Mapping[str, float]) -> str:
    """Return `load 5.1, train 61.0, sample 22.4, sync 26.8, save 22.4`."""
    return ", ".join(f"{phase} {value:.1f}" for phase, value in phases.items())
