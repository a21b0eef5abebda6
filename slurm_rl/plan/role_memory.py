"""What one worker of each role takes, as far as the config says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_rl.config.parallel import HELD_GRADIENTS, build_parallel_dims
from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.plan.memory import GB, EngineMemory, ModelShape, estimate_engine
from slurm_rl.plan.policy_memory import (
    PolicyLoad,
    PolicyMemory,
    estimate_critic,
    estimate_frozen,
    estimate_policy,
    with_frozen_model,
    with_second_model,
)

if TYPE_CHECKING:  # the node agent imports this without pydantic
    from slurm_rl.config.run import RunConfig

DEFAULT_MICRO_BATCH_TOKENS = 8192


def policy_memory(config: RunConfig, shape: ModelShape, reference: ModelShape, num_workers: int) -> PolicyMemory:
    """Of a policy worker with what else its process, or another, keeps on the GPU."""
    estimate = estimate_critic if config.task == "rm" else estimate_policy
    memory = estimate(shape, _load(config, num_workers))
    if holds_reference(config):
        num_parts = build_parallel_dims(config.policy, num_workers).shard
        memory = with_frozen_model(memory, reference, bytes_per_value(config), num_parts)
    if config.algorithm.needs_values and config.task not in TORCHRUN_TASKS and not critic_is_apart(config):
        memory = with_second_model(memory)
    return memory


def critic_memory(config: RunConfig, shape: ModelShape, num_workers: int) -> PolicyMemory:
    """Of a worker of a critic with GPUs of its own; its reward model is taken to be as large."""
    memory = estimate_critic(shape, _load(config, num_workers))
    reward = config.reward.model
    return with_frozen_model(memory, shape, 2 if reward.dtype == "bfloat16" else 4) if reward.beside_critic else memory


def reference_memory(config: RunConfig, shape: ModelShape) -> PolicyMemory:
    """Of a worker that holds the reference apart from the policy, whole."""
    return estimate_frozen(shape, _load(config, 1))


def critic_is_apart(config: RunConfig) -> bool:
    return config.task == "grpo" and config.algorithm.needs_values and config.critic.is_apart


def holds_reference(config: RunConfig) -> bool:
    """Whether each policy worker holds a whole copy of the model as the run found it."""
    if config.task in TORCHRUN_TASKS:
        return config.task == "dpo" and config.dpo.reference == "live"
    # Under adapters the base is there anyway, unless the warm-up changes what the policy begins as.
    is_base = config.model.lora is not None and config.warmup.num_steps == 0 and config.reference.path is None
    return config.algorithm.kl.coefficient > 0 and config.reference.num_workers is None and not is_base


def checkpoint_bytes(config: RunConfig, shape: ModelShape) -> int:
    """What a checkpoint takes on disk: of each trained value a float32 copy and two moments, of all models that learn.

    DeepSpeed writes the values in the model's own type beside them.
    """
    lora = config.model.lora
    trained = shape.num_parameters if lora is None else shape.adapter_parameters(lora.rank)
    more = 2 if config.policy.backend == "deepspeed" and config.model.dtype == "bfloat16" else 0
    has_critic = config.task == "grpo" and config.algorithm.needs_values
    return (trained + has_critic * shape.num_parameters) * (12 + more)


def longest_tokens(config: RunConfig) -> int:
    """Tokens of the longest sequence that is trained on."""
    if config.task in TORCHRUN_TASKS:
        return config.supervised.max_tokens
    return config.data.max_prompt_tokens + config.rollout.max_tokens


def _load(config: RunConfig, num_workers: int) -> PolicyLoad:
    return PolicyLoad(
        backend=config.policy.backend,
        zero_stage=config.policy.zero_stage,
        num_workers=num_workers,
        bytes_per_value=bytes_per_value(config),
        gradient_checkpointing=config.model.gradient_checkpointing is True,
        micro_batch_tokens=config.policy.micro_batch_tokens or DEFAULT_MICRO_BATCH_TOKENS,
        offload=config.policy.offload,
        lora_rank=None if config.model.lora is None else config.model.lora.rank,
        logit_rows=config.policy.chunk_tokens,
        entropy_gradient=config.task == "grpo" and config.algorithm.entropy_bonus > 0,
        held_bytes=HELD_GRADIENTS * GB * (config.cluster.gpu_mem_gb or 0),
    )


def engine_memory(config: RunConfig, shape: ModelShape, size: int) -> EngineMemory:
    longest = config.data.max_prompt_tokens + config.rollout.max_tokens
    return estimate_engine(
        shape, tensor_parallel_size=size, bytes_per_value=bytes_per_value(config), longest_tokens=longest
    )


def bytes_per_value(config: RunConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4
