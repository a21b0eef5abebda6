"""What the user left open, filled in from the GPUs and the model's shape; what cannot fit, refused. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurm_rl.config.parallel import build_parallel_dims
from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.memory import (
    EngineMemory,
    ModelShape,
    PolicyLoad,
    PolicyMemory,
    asleep_gb,
    estimate_critic,
    estimate_engine,
    estimate_policy,
    with_frozen_model,
    with_second_model,
)
from slurm_rl.plan.topology import ActorPlan

if TYPE_CHECKING:  # the node agent imports this without pydantic
    from slurm_rl.config.run import RunConfig


DEFAULT_MICRO_BATCH_TOKENS = 8192
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vLLM's attention on CPU; tests/train/test_gloo_transfer.py holds them against the installed one."""
_FROZEN = {"policy": "reference", "critic": "reward model"}
"""The frozen model on the GPUs of each role."""


@dataclass(frozen=True)
class LayoutPlan:
    """Sizes that follow from the machines; the estimates are None where shape or GPU memory is not known.

    Tasks under torchrun have no engine: theirs is None always.
    """

    tensor_parallel_size: int
    micro_batch_tokens: int
    gpu_mem_gb: float | None = None
    engine_budget_gb: float | None = None
    """What of it vLLM may take."""
    policy: PolicyMemory | None = None
    engine: EngineMemory | None = None
    critic: PolicyMemory | None = None
    """Of a critic with GPUs of its own."""
    unknown: str | None = None
    """Why nothing is estimated, and what to do about it."""

    @staticmethod
    def from_json(tree: dict[str, Any]) -> LayoutPlan:
        kinds = {"policy": PolicyMemory, "critic": PolicyMemory, "engine": EngineMemory}
        memory = {name: kind(**tree[name]) for name, kind in kinds.items() if tree.get(name)}
        return LayoutPlan(**{**tree, **memory})


def choose_tensor_parallel_size(config: RunConfig, shape: ModelShape | None) -> int:
    """As configured, or the fewest GPUs that hold an engine.

    Raises:
        ConfigError: it does not divide the heads, or no number of a node's GPUs holds an engine.
    """
    if config.task in TORCHRUN_TASKS:
        return 1
    wanted, gpus = config.rollout.tensor_parallel_size, config.cluster.gpus_per_node
    if wanted is not None and shape is not None and shape.num_heads % wanted:
        raise ConfigError(
            "rollout.tensor_parallel_size must divide the model's attention heads",
            seen=f"{shape.num_heads} heads over {wanted} GPUs",
            action=f"choose one of {', '.join(str(size) for size in _sizes(shape, max(gpus, wanted)))}",
        )
    budget = _engine_budget_gb(config)
    if shape is None or budget is None:
        return wanted or 1
    sizes = [wanted] if wanted else _sizes(shape, gpus)
    needs = {size: _engine(config, shape, size).least_gb for size in sizes}
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
    config: RunConfig, shape: ModelShape | None, actors: Sequence[ActorPlan], tensor_parallel_size: int
) -> LayoutPlan:
    """The sizes of this placement.

    Raises:
        ConfigError: a worker of the policy or of the critic cannot fit its GPU; the message holds both numbers.
    """
    wanted, capacity = config.policy.micro_batch_tokens, config.cluster.gpu_mem_gb
    if shape is None or capacity is None:
        unknown = _what_is_unknown(config, shape)
        return LayoutPlan(tensor_parallel_size, wanted or DEFAULT_MICRO_BATCH_TOKENS, unknown=unknown)
    counts = {role: sum(actor.role == role for actor in actors) for role in ("policy", "critic")}
    colocated = config.rollout.colocate and config.task not in TORCHRUN_TASKS
    rooms = {"policy": capacity - (asleep_gb() if colocated else 0), "critic": capacity}
    for tokens in [wanted] if wanted else _micro_batches(_longest(config)):
        needs = {"policy": _policy(config, shape, counts["policy"], tokens)}
        if _critic_is_apart(config):
            needs["critic"] = _critic(config, shape, counts["critic"], tokens)
        if all(memory.total_gb <= rooms[role] for role, memory in needs.items()):
            if config.task in TORCHRUN_TASKS:
                return LayoutPlan(tensor_parallel_size, tokens, capacity, policy=needs["policy"])
            engine, budget = _engine(config, shape, tensor_parallel_size), _engine_budget_gb(config)
            policy, critic = needs["policy"], needs.get("critic")
            if colocated and budget is not None:
                _check_sampling(config, policy, engine, capacity, budget)
            return LayoutPlan(tensor_parallel_size, tokens, capacity, budget, policy, engine, critic)
    role = next(role for role, memory in needs.items() if memory.total_gb > rooms[role])
    raise ConfigError(
        f"a {role} worker must fit its GPU (cluster.gpu_mem_gb"
        + (", less what a sleeping engine keeps)" if colocated and role == "policy" else ")"),
        seen=f"{needs[role].total_gb:.1f} GB > {rooms[role]:.1f} GB: {describe_memory(role, needs[role])}, "
        f"{counts[role]} workers, micro-batches of {tokens} tokens",
        action="take more nodes, "
        + ("" if config.model.gradient_checkpointing else "model.gradient_checkpointing=true, ")
        + ("" if config.policy.logprob_chunk_tokens else "policy.logprob_chunk_tokens=1024, ")
        + ("" if config.policy.offload == "all" else "policy.offload=all, ")
        + ("" if config.model.lora is not None else "+lora=all_linear, ")
        + ("" if build_parallel_dims(config.policy, 2).shard > 1 else "policy.zero_stage=3, ")
        + "a smaller policy.micro_batch_tokens or shorter sequences",
    )


def _check_sampling(
    config: RunConfig, policy: PolicyMemory, engine: EngineMemory, capacity: float, budget: float
) -> None:
    """Raise ConfigError when engines that share the policy's GPUs leave no room for what it keeps while they sample."""
    if policy.resident_gb + budget <= capacity:
        return
    fitting = math.floor(100 * (capacity - policy.resident_gb) / capacity) / 100
    action = "take more nodes, give the engines GPUs of their own (rollout.colocate=false)"
    if fitting * capacity >= engine.least_gb:
        action = f"set rollout.gpu_memory_utilization={fitting}"
    elif config.policy.offload == "none":
        action = "set policy.offload=optimizer, or " + action
    raise ConfigError(
        "colocated, a GPU must hold cluster.gpu_mem_gb * rollout.gpu_memory_utilization for its engine beside what the "
        "policy keeps while the engine samples",
        seen=f"{budget:.1f} + {policy.resident_gb:.1f} GB > {capacity:.1f} GB (weights {policy.weights_gb:.1f}, "
        f"optimizer {policy.optimizer_gb:.1f}, reference {policy.frozen_gb:.1f})",
        action=action,
    )


def _what_is_unknown(config: RunConfig, shape: ModelShape | None) -> str:
    if shape is not None:
        return "how much memory a GPU has: cluster.gpu_mem_gb=80"
    name = config.model.path
    return f"the shape of {name}: python -m slurm_rl prepare model {name}, then model.path=<the folder it prints>"


def _policy(config: RunConfig, shape: ModelShape, num_workers: int, tokens: int) -> PolicyMemory:
    """Of a policy worker with what else its process, or another, keeps on the GPU."""
    memory = estimate_policy(shape, _load(config, num_workers, tokens))
    if _holds_reference(config):
        num_parts = build_parallel_dims(config.policy, num_workers).shard
        memory = with_frozen_model(memory, shape, _bytes(config), num_parts)
    if config.algorithm.needs_values and config.task not in TORCHRUN_TASKS and not _critic_is_apart(config):
        memory = with_second_model(memory)
    return memory


def _critic(config: RunConfig, shape: ModelShape, num_workers: int, tokens: int) -> PolicyMemory:
    """Of a worker of a critic with GPUs of its own; its reward model is taken to be as large."""
    memory = estimate_critic(shape, _load(config, num_workers, tokens))
    reward = config.reward.model
    return with_frozen_model(memory, shape, 2 if reward.dtype == "bfloat16" else 4) if reward.beside_critic else memory


def _critic_is_apart(config: RunConfig) -> bool:
    return config.task == "grpo" and config.algorithm.needs_values and config.critic.is_apart


def _holds_reference(config: RunConfig) -> bool:
    """Whether each policy worker holds a whole copy of the model as the run found it."""
    if config.task in TORCHRUN_TASKS:
        return config.task == "dpo" and config.dpo.reference == "live"
    # Under adapters the base is there anyway, unless the warm-up changes what the policy begins as.
    is_base = config.model.lora is not None and config.warmup.num_steps == 0
    return config.algorithm.kl.coefficient > 0 and config.reference.num_workers is None and not is_base


def _longest(config: RunConfig) -> int:
    """Tokens of the longest sequence that is trained on."""
    if config.task in TORCHRUN_TASKS:
        return config.supervised.max_tokens
    return config.data.max_prompt_tokens + config.rollout.max_tokens


def _micro_batches(longest: int) -> list[int]:
    """Budgets to try, the largest first; the smallest still holds one longest sequence."""
    return [size for size in (32768, 16384, 8192, 4096, 2048, 1024) if size > longest] + [longest]


def _load(config: RunConfig, num_workers: int, tokens: int) -> PolicyLoad:
    return PolicyLoad(
        backend=config.policy.backend,
        zero_stage=config.policy.zero_stage,
        num_workers=num_workers,
        bytes_per_value=_bytes(config),
        gradient_checkpointing=config.model.gradient_checkpointing,
        micro_batch_tokens=tokens,
        offload=config.policy.offload,
        lora_rank=None if config.model.lora is None else config.model.lora.rank,
        logit_rows=config.policy.logprob_chunk_tokens,
        entropy_gradient=config.task == "grpo" and config.algorithm.entropy_bonus > 0,
    )


def _engine(config: RunConfig, shape: ModelShape, size: int) -> EngineMemory:
    longest = config.data.max_prompt_tokens + config.rollout.max_tokens
    return estimate_engine(shape, tensor_parallel_size=size, bytes_per_value=_bytes(config), longest_tokens=longest)


def _engine_budget_gb(config: RunConfig) -> float | None:
    memory = config.cluster.gpu_mem_gb
    return None if memory is None else memory * config.rollout.gpu_memory_utilization


def _bytes(config: RunConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def describe_memory(role: str, memory: PolicyMemory) -> str:
    """`weights 2.1, gradients 1.0, optimizer 4.1, activations 6.3, logits 9.9`."""
    parts = {
        "weights": memory.weights_gb,
        "gathered": memory.gathered_gb,
        "gradients": memory.gradients_gb,
        "optimizer": memory.optimizer_gb,
        _FROZEN[role]: memory.frozen_gb,
        "activations": memory.activations_gb,
        "logits": memory.logits_gb,
    }
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if value or name != _FROZEN[role])


def render_layout(layout: LayoutPlan, *, has_engines: bool = True) -> list[str]:
    """Lines for people."""
    sizes = f"micro-batches of {layout.micro_batch_tokens} tokens"
    if has_engines:
        sizes = f"tensor parallel {layout.tensor_parallel_size}, {sizes}"
    if layout.policy is None:
        return [sizes, f"memory not estimated; tell {layout.unknown or 'cluster.gpu_mem_gb'}"]
    trained = [
        f"{role} GPU  about {memory.total_gb:.0f} of {layout.gpu_mem_gb:g} GB: {describe_memory(role, memory)}"
        for role, memory in (("policy", layout.policy), ("critic", layout.critic))
        if memory is not None
    ]
    if layout.engine is None or layout.engine_budget_gb is None:
        return [sizes, *trained]
    budget = layout.engine_budget_gb
    return [
        sizes,
        *trained,
        f"engine GPU  weights {layout.engine.weights_gb:.1f} of {budget:.0f} GB, "
        f"room for {layout.engine.num_sequences(budget)} longest sequences at once",
    ]
