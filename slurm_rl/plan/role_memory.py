"""Memory of one process of each role, from the config and the model's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_rl.config.judge import SERVER_SHARE
from slurm_rl.config.parallel import HELD_GRADIENTS, ParallelDims, build_parallel_dims
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.memory import GB, EngineLoad, EngineMemory, ModelShape, ServiceMemory, estimate_engine
from slurm_rl.plan.placement import gpu_memory
from slurm_rl.plan.policy_memory import (
    PolicyMemory,
    block_activations,
    estimate_critic,
    estimate_frozen,
    estimate_policy,
    with_frozen_model,
    with_second_model,
)
from slurm_rl.plan.training_states import PolicyLoad

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig

DEFAULT_MICRO_BATCH_TOKENS = 8192
LARGE_GPU_GB = 75
"""GPUs for which vLLM reads more tokens at once (70 GiB, `get_batch_defaults` in its arguments)."""
DEFAULT_CONTEXT_TOKENS = 32768
"""Context length of a model whose config.json has none."""


def policy_memory(config: RunConfig, shape: ModelShape, reference: ModelShape, num_workers: int) -> PolicyMemory:
    """Estimate a policy worker with the reference and critic that share its GPU."""
    estimate = estimate_critic if config.task == "rm" else estimate_policy
    dims = build_parallel_dims(config.policy, num_workers)
    memory = estimate(shape, _load(config, dims))
    if config.policy_holds_reference:
        memory = with_frozen_model(memory, reference, bytes_per_value(config), dims.num_parts)
    if config.has_critic and not config.critic.is_dedicated:
        memory = with_second_model(memory)
    return memory


def critic_memory(config: RunConfig, shape: ModelShape, num_workers: int) -> PolicyMemory:
    """Estimate a worker of a dedicated critic; its reward model is assumed to have the same shape."""
    memory = estimate_critic(shape, _load(config, build_parallel_dims(config.policy, num_workers)))
    reward = config.reward.model
    return with_frozen_model(memory, shape, 2 if reward.dtype == "bfloat16" else 4) if reward.beside_critic else memory


def reference_memory(config: RunConfig, shape: ModelShape) -> PolicyMemory:
    """Estimate a worker of a dedicated, unsharded reference model."""
    return estimate_frozen(shape, _load(config, ParallelDims(1, 1)))


def engine_memory(config: RunConfig, shape: ModelShape, size: int) -> EngineMemory:
    """Estimate one GPU of an engine of `size` GPUs."""
    rollout = config.rollout
    is_large = (config.cluster.gpu_mem_gb or 0) >= LARGE_GPU_GB
    load = EngineLoad(
        tensor_parallel_size=size,
        bytes_per_value=bytes_per_value(config),
        longest_tokens=config.max_sequence_tokens,
        max_num_seqs=rollout.max_num_seqs,
        batch_tokens=int(rollout.engine_args.get("max_num_batched_tokens") or (16384 if is_large else 8192)),
        has_graphs=not rollout.enforce_eager and config.cluster.accelerator != "cpu",
    )
    return estimate_engine(shape, load)


def checkpoint_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return the size of a checkpoint: float32 weights and two moments of all trained models.

    DeepSpeed also writes the weights in the model's dtype.
    """
    trained = count_trained(config, shape)
    more = 2 if config.policy.backend == "deepspeed" and config.model.dtype == "bfloat16" else 0
    return (trained + config.has_critic * shape.num_parameters) * (12 + more)


def count_trained(config: RunConfig, shape: ModelShape) -> int:
    """Return the trained parameters of the policy: all, or those of adapters."""
    lora = config.model.lora
    if lora is None:
        return shape.num_parameters
    return shape.adapter_parameters(lora.max_rank, on_experts=bool(lora.target_parameters))


def bytes_per_value(config: RunConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def _load(config: RunConfig, dims: ParallelDims) -> PolicyLoad:
    return PolicyLoad(
        backend=config.policy.backend,
        zero_stage=config.policy.zero_stage,
        num_workers=dims.num_parts if config.policy.backend == "fsdp2" else dims.num_ranks,
        bytes_per_value=bytes_per_value(config),
        gradient_checkpointing=config.model.gradient_checkpointing is True,
        micro_batch_tokens=-(-(config.policy.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS) // dims.context),
        offload=config.policy.offloaded,
        lora_rank=None if config.model.lora is None else config.model.lora.max_rank,
        lora_on_experts=config.model.lora is not None and bool(config.model.lora.target_parameters),
        logit_rows=config.policy.chunk_tokens,
        entropy_gradient=config.task == "grpo" and config.algorithm.entropy_coef > 0,
        held_bytes=HELD_GRADIENTS * GB * (config.cluster.gpu_mem_gb or 0),
    )


def fit_services(
    config: RunConfig, actors: Sequence[ActorPlan], reward_shape: ModelShape | None
) -> ServiceMemory | None:
    """Estimate the GPU of a reward service; None without GPU, or if model or GPU memory is unknown.

    Args:
        reward_shape: shape of reward.model.path, if this machine sees its config.json.

    Raises:
        ConfigError: it does not fit; the message has both numbers.
    """
    capacity = gpu_memory(config, actors, "reward") if config.reward.models_on_gpus else None
    if capacity is None or reward_shape is None:
        return None
    reward, size = config.reward, 2 if config.reward.model.dtype == "bfloat16" else 4
    # One output instead of a vocabulary; without a backward pass one block's activations exist at a time.
    weights = replace(reward_shape, is_tied=True).num_parameters * size
    passing = block_activations(reward_shape, reward.model.batch_size * config.max_sequence_tokens, size)
    memory = ServiceMemory(reward.num_workers, weights / GB, passing / GB, capacity)
    if memory.total_gb > capacity:
        raise ConfigError(
            "the reward models of a service must fit its GPU (gpu_mem_gb)",
            seen=f"{memory.total_gb:.1f} GB > {capacity:.1f} GB: {memory}",
            action="lower reward.num_workers or reward.model.batch_size, set reward.model.dtype=bfloat16, or take "
            "larger GPUs for reward.service.node_group",
        )
    return memory


def fit_judge(
    config: RunConfig, actors: Sequence[ActorPlan], shape: ModelShape | None
) -> tuple[EngineMemory, float] | None:
    """Estimate a GPU of a judge's server, and return the memory that vLLM may use; None as in `fit_services`.

    Args:
        shape: shape of reward.judge.server.model, if this machine sees its config.json.

    Raises:
        ConfigError: it does not fit, or its heads cannot be divided.
    """
    server, capacity = config.reward.judge.server, gpu_memory(config, actors, "reward")
    if server.model is None or shape is None or capacity is None or not config.cluster.gpus_per_node:
        return None
    size, longest = server.tensor_parallel_size, server.max_model_len or shape.context_length or DEFAULT_CONTEXT_TOKENS
    if shape.num_heads % size:
        raise ConfigError(
            "reward.judge.server.tensor_parallel_size must divide the attention heads of its model",
            seen=f"{shape.num_heads} heads over {size} GPUs",
            action="choose another number",
        )
    is_large = capacity >= LARGE_GPU_GB
    load = EngineLoad(
        tensor_parallel_size=size,
        bytes_per_value=4 if server.vllm_args.get("dtype") == "float32" else 2,
        longest_tokens=longest,
        max_num_seqs=int(server.vllm_args.get("max_num_seqs") or (1024 if is_large else 256)),
        batch_tokens=int(server.vllm_args.get("max_num_batched_tokens") or (8192 if is_large else 2048)),
    )
    memory = estimate_engine(shape, load)
    budget = capacity * SERVER_SHARE
    if memory.least_gb > budget:
        raise ConfigError(
            "a GPU of a judge's server must hold its share of the weights and one longest sequence within "
            f"{SERVER_SHARE:g} of gpu_mem_gb",
            seen=f"{memory.least_gb:.1f} GB > {budget:.1f} GB: weights {memory.weights_gb:.1f}, KV cache of {longest} "
            f"tokens {memory.kv_sequence_gb:.1f}",
            action="raise reward.judge.server.tensor_parallel_size, lower its max_model_len, or take a smaller model",
        )
    return memory, budget
