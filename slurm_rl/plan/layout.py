"""What the user left open, filled in from the GPUs and the model's shape; what cannot fit, refused. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.fit import (
    Setting,
    change,
    describe_nearest,
    fill_in,
    find_fitting,
    find_misfit,
    host_memory,
    list_choices,
)
from slurm_rl.plan.kinds import gpu_memory, kind_of, kinds_for, list_kinds
from slurm_rl.plan.memory import EngineMemory, ModelShape
from slurm_rl.plan.policy_memory import PolicyMemory
from slurm_rl.plan.role_memory import DEFAULT_MICRO_BATCH_TOKENS, engine_memory
from slurm_rl.plan.services import ServiceMemory
from slurm_rl.plan.topology import ActorPlan
from slurm_rl.plan.transfer import choose_transfer

if TYPE_CHECKING:  # the node agent imports this without pydantic
    from slurm_rl.config.run import RunConfig


CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vLLM's attention on CPU; tests/train/test_gloo_transfer.py holds them against the installed one."""
_FROZEN = {"policy": "reference", "critic": "reward model"}
"""The frozen model on the GPUs of each role."""
# Phases that runs without engines have not.
_BESIDE = {"sample": "an engine that samples", "sync": "an engine that takes weights"}


@dataclass(frozen=True)
class LayoutPlan:
    """Sizes that follow from the machines; the estimates are None where shape or GPU memory is not known.

    Tasks under torchrun have no engine: theirs is None always.
    """

    tensor_parallel_size: int
    micro_batch_tokens: int
    gradient_checkpointing: bool
    logprob_chunk_tokens: int | None
    gpu_mem_gb: float | None = None
    engine_budget_gb: float | None = None
    """What of it vLLM may take."""
    policy: PolicyMemory | None = None
    engine: EngineMemory | None = None
    critic: PolicyMemory | None = None
    """Of a critic with GPUs of its own."""
    reference: PolicyMemory | None = None
    """Of a reference with GPUs of its own."""
    service: ServiceMemory | None = None
    """Of a reward service with a GPU of its own, where its model is known."""
    capacities_gb: dict[str, float] = field(default_factory=dict)
    """Memory of the smallest GPU that each role has, where it is known."""
    unknown: str | None = None
    """Why nothing is estimated, and what to do about it."""
    host_gb: dict[str, float] = field(default_factory=dict)
    """Host memory by phase, of the node that holds most."""

    def fill_in(self, config: RunConfig) -> RunConfig:
        """With these sizes where the user left them open."""
        again, chunk = self.gradient_checkpointing, self.logprob_chunk_tokens
        sizes = {"micro_batch_tokens": self.micro_batch_tokens, "logprob_chunk_tokens": chunk}
        return change(config, model={"gradient_checkpointing": again}, policy=sizes)

    @staticmethod
    def from_json(tree: dict[str, Any]) -> LayoutPlan:
        roles = ("policy", "critic", "reference")
        kinds = dict.fromkeys(roles, PolicyMemory) | {"engine": EngineMemory, "service": ServiceMemory}
        memory = {name: kind(**tree[name]) for name, kind in kinds.items() if tree.get(name)}
        return LayoutPlan(**{**tree, **memory})


def choose_tensor_parallel_size(config: RunConfig, shape: ModelShape | None) -> int:
    """As configured, or the fewest GPUs that hold an engine.

    Raises:
        ConfigError: it does not divide the heads, or no number of a node's GPUs holds an engine.
    """
    if config.task in TORCHRUN_TASKS:
        return 1
    wanted, nodes = config.rollout.tensor_parallel_size, kinds_for(config, "rollout")
    gpus = min((kind.gpus_per_node for kind in nodes), default=config.cluster.gpus_per_node)
    if wanted is not None and shape is not None and shape.num_heads % wanted:
        raise ConfigError(
            "rollout.tensor_parallel_size must divide the model's attention heads",
            seen=f"{shape.num_heads} heads over {wanted} GPUs",
            action=f"choose one of {', '.join(str(size) for size in _sizes(shape, max(gpus, wanted)))}",
        )
    sizes_gb = [kind.gpu_mem_gb for kind in nodes] or [config.cluster.gpu_mem_gb]
    memory = min((size for size in sizes_gb if size is not None), default=None)
    budget = None if memory is None else memory * config.rollout.gpu_memory_utilization
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
    """Raise ConfigError when the longest sequence is longer than the model's context."""
    limit = None if shape is None else shape.context_length
    if config.task in TORCHRUN_TASKS:
        if limit is not None and config.supervised.max_tokens > limit:
            raise ConfigError(
                "supervised.max_tokens must be <= the model's max_position_embeddings",
                seen=f"{config.supervised.max_tokens} > {limit}",
                action=f"set supervised.max_tokens={limit}, or take a model with a longer context",
            )
        return
    longest = config.data.max_prompt_tokens + config.rollout.max_tokens
    if limit is not None and longest > limit:
        raise ConfigError(
            "data.max_prompt_tokens + rollout.max_tokens must be <= the model's max_position_embeddings",
            seen=f"{config.data.max_prompt_tokens} + {config.rollout.max_tokens} > {limit}",
            action="shorten either, or take a model with a longer context",
        )


def check_heads(config: RunConfig, shape: ModelShape | None) -> None:
    """Raise ConfigError when the rollout engine's attention on CPU has no kernel for the model's heads."""
    tiny = config.model.tiny
    size = shape.head_dim if shape else tiny.hidden_size // tiny.num_heads if tiny else None
    has_engine = not config.external and config.task not in TORCHRUN_TASKS
    if has_engine and config.cluster.accelerator == "cpu" and size is not None and size not in CPU_HEAD_SIZES:
        raise ConfigError(
            "without a GPU a rollout engine's attention heads must be of a size that vLLM has a kernel for: "
            + ", ".join(map(str, CPU_HEAD_SIZES)),
            seen=f"heads of {size}",
            action="change model.tiny.hidden_size or num_heads" if tiny else "take another model, or a GPU",
        )


def build_layout(
    config: RunConfig,
    shape: ModelShape | None,
    teacher: ModelShape | None,
    actors: Sequence[ActorPlan],
    tensor_parallel_size: int,
) -> LayoutPlan:
    """The sizes of this placement; of what was left open the fastest that fits in every phase.

    Args:
        teacher: of reference.path; None: the reference is as large as the policy.

    Raises:
        ConfigError: a phase fits neither a GPU nor a node; the message holds both numbers, and what would fit.
    """
    on_cpu = not config.cluster.gpus_per_node
    if config.eval.only:
        # Engines were looked at when their size was chosen; nothing else is there.
        return LayoutPlan(tensor_parallel_size, *_sizes_of(fill_in(config, sparing=False)))
    capacities = _capacities(config, actors)
    if shape is None or None in capacities.values():
        # Not knowing, a GPU's memory is spared.
        settled = fill_in(config, sparing=not on_cpu and config.model.path is not None)
        return LayoutPlan(tensor_parallel_size, *_sizes_of(settled), unknown=_what_is_unknown(config, shape))
    asked = ask_for(config, shape, teacher, actors, tensor_parallel_size)
    found = replace(asked, config=fill_in(config, sparing=False)) if on_cpu else find_fitting(asked)
    if found is None:
        raise _refuse(asked)
    hosts, kinds = _host_memory_by_node(found, actors), list_kinds(config)
    for node, phases in hosts.items():
        limit = kind_of(kinds, node).mem_gb_per_node if kinds else config.cluster.mem_gb_per_node
        if isinstance(limit, int) and max(phases.values()) > limit:
            raise ConfigError(
                "what a node holds in host memory must fit cluster.mem_gb_per_node",
                seen=f"{max(phases.values()):.1f} GB > {limit} GB: {describe_phases(phases)}",
                action="take nodes with more memory, more of them, or a smaller model",
            )
    needs, engines = found.needs(), config.task not in TORCHRUN_TASKS
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


def ask_for(
    config: RunConfig,
    shape: ModelShape,
    teacher: ModelShape | None,
    actors: Sequence[ActorPlan],
    tensor_parallel_size: int,
) -> Setting:
    """What is to fit, with what was left open still open; GPUs of an unknown size, and none, hold anything."""
    roles = Counter(actor.role for actor in actors)
    known = {role: math.inf if size is None else size for role, size in _capacities(config, actors).items()}
    return Setting(config, shape, teacher or shape, roles, tensor_parallel_size, known)


def _capacities(config: RunConfig, actors: Sequence[ActorPlan]) -> dict[str, float | None]:
    """GB of the smallest GPU of each role; None where it is not known, and without GPUs no bound.

    Not of reward services, whose model is another one: see services.py.
    """
    roles = dict.fromkeys(["policy", *(actor.role for actor in actors if actor.role != "reward")])
    if not config.cluster.gpus_per_node:
        return dict.fromkeys(roles, math.inf)
    return {role: gpu_memory(config, actors, role) for role in roles}


def _sizes_of(config: RunConfig) -> tuple[int, bool, int | None]:
    tokens = config.policy.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS
    return tokens, config.model.gradient_checkpointing is True, config.policy.chunk_tokens


def _host_memory_by_node(found: Setting, actors: Sequence[ActorPlan]) -> dict[int, dict[str, float]]:
    """By rank of the node, then by phase."""
    nodes: dict[int, Counter[str]] = {}
    for actor in actors:
        nodes.setdefault(actor.node, Counter())[actor.role] += 1
    direct = choose_transfer(found.config, actors)[0] != "ray"
    return {node: host_memory(found, roles, is_head=node == 0, direct=direct) for node, roles in nodes.items()}


def _refuse(asked: Setting) -> ConfigError:
    """Of the most sparing choice: which phase does not fit, and what would."""
    tried = list_choices(asked)[-1]
    misfit = find_misfit(tried)
    assert misfit is not None
    role, need = misfit.role, misfit.memory.phases_gb[misfit.phase]
    beside = _BESIDE.get(misfit.phase, "an engine asleep") if tried.colocated and role == "policy" else ""
    parts = describe_memory(role, misfit.memory)
    return ConfigError(
        f"a {role} worker must fit its GPU (cluster.gpu_mem_gb" + (f", beside {beside})" if beside else ")"),
        seen=f"{need:.1f} GB > {misfit.room_gb:.1f} GB in phase {misfit.phase}; in train: {parts}; "
        f"{asked.num_workers[role]} workers, micro-batches of {tried.config.policy.micro_batch_tokens} tokens",
        action=describe_nearest(asked),
    )


def _what_is_unknown(config: RunConfig, shape: ModelShape | None) -> str:
    if shape is not None:
        return "how much memory a GPU has: cluster.gpu_mem_gb=80"
    name = config.model.path
    return f"the shape of {name}: python -m slurm_rl prepare model {name}, then model.path=<the folder it prints>"


def describe_memory(role: str, memory: PolicyMemory) -> str:
    """`weights 2.1, gathered 0.3, gradients 1.0, optimizer 4.1, activations 6.3, logits 9.9`; what is 0 is left out."""
    names = ("weights", "gathered", "gradients", "optimizer", "update", "activations", "logits")
    parts = {name: getattr(memory, f"{name}_gb") for name in names} | {_FROZEN.get(role, ""): memory.frozen_gb}
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if round(value, 1))


def describe_phases(phases: Mapping[str, float]) -> str:
    """`load 5.1, train 61.0, sample 22.4, sync 26.8, save 22.4`."""
    return ", ".join(f"{phase} {value:.1f}" for phase, value in phases.items())
