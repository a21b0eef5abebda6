"""List the layouts that a config leaves open; layout.py takes the one with the shortest estimated step that fits.

Values that the config sets are kept. Open are rollout.colocate, rollout.tensor_parallel_size, policy.num_workers (the
engines have the rest) and policy.offload; fit.py lists micro-batches, recomputation and the chunked head of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_rl.config.parallel import divides_heads
from slurm_rl.config.tasks import TORCHRUN_TASKS
from slurm_rl.errors import ConfigError
from slurm_rl.plan.node_groups import groups_for, list_nodes
from slurm_rl.plan.role_memory import engine_memory
from slurm_rl.plan.setting import ENGINE_SHARE

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.memory import ModelShape

VARLEN = ("auto", "varlen")
"""Values of model.attention with which ranks can share rows."""
_PARTS, _MANY = 8, 1024
"""The policy gets 1 to 7 eighths of the GPUs; of more GPUs 1 to 3 quarters, since placing takes time."""


@dataclass(frozen=True)
class Candidate:
    """One layout: a config with rollout.colocate, policy.num_workers and policy.offload, and the engines' size."""

    config: RunConfig
    tensor_parallel_size: int

    @property
    def placement(self) -> tuple[bool, int, int | None]:
        """Values that determine which process runs where."""
        return self.is_split, self.tensor_parallel_size, self.config.policy.num_workers

    @property
    def effort(self) -> tuple[bool, int]:
        """Sort key: between layouts of the same speed the simpler one is taken."""
        return self.config.policy.offload == "optimizer", self.tensor_parallel_size

    @property
    def is_split(self) -> bool:
        return self.config.has_engines and not self.config.rollout.colocate


def list_candidates(config: RunConfig, shape: ModelShape | None) -> Iterator[Candidate]:
    """Yield the open layouts, those with the fewest GPUs per engine first.

    Raises:
        ConfigError: no engine of the configured sizes holds the model.
    """
    sizes = list_engine_sizes(config, shape)
    has_gpus = [node for node in list_nodes(config) if node.gpus_per_node]
    is_known = shape is not None and bool(has_gpus) and all(node.gpu_mem_gb is not None for node in has_gpus)
    for colocate in _list_colocate(config):
        shared = config.with_values(rollout={"colocate": colocate})
        for size in sizes if is_known else sizes[:1]:
            for num_workers in _list_workers(shared, size) if is_known else [config.policy.num_workers]:
                for offload in _list_offload(config) if is_known else [config.policy.offloaded]:
                    values = {"num_workers": num_workers, "offload": offload}
                    yield Candidate(shared.with_values(policy=values), size)


def list_engine_sizes(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """Return the GPUs per engine that hold the model and one longest sequence.

    Raises:
        ConfigError: the configured size does not divide the heads, or no number of GPUs of a node holds an engine.
    """
    if config.task in TORCHRUN_TASKS:
        return [1]
    wanted, groups = config.rollout.tensor_parallel_size, groups_for(config, "rollout")
    gpus = min((group.gpus_per_node for group in groups), default=config.cluster.gpus_per_node)
    if wanted is not None and shape is not None and shape.num_heads % wanted:
        raise ConfigError(
            "rollout.tensor_parallel_size must divide the model's attention heads",
            seen=f"{shape.num_heads} heads over {wanted} GPUs",
            action=f"choose one of {', '.join(str(size) for size in _divisors(shape, max(gpus, wanted)))}",
        )
    sizes_gb = [group.gpu_mem_gb for group in groups] or [config.cluster.gpu_mem_gb]
    memory = min((size for size in sizes_gb if size is not None), default=None)
    if shape is None or memory is None:
        return [wanted or 1]
    budget = memory * (config.rollout.gpu_memory_utilization or ENGINE_SHARE)
    needs = {
        size: engine_memory(config, shape, size).least_gb for size in ([wanted] if wanted else _divisors(shape, gpus))
    }
    if fitting := [size for size, need in needs.items() if need <= budget]:
        return fitting
    size, need = min(needs.items(), key=lambda item: item[1])
    raise ConfigError(
        "a GPU of a rollout engine must hold its share of the weights and one longest sequence within "
        "cluster.gpu_mem_gb * rollout.gpu_memory_utilization",
        seen=f"{need:.1f} GB > {budget:.1f} GB with rollout.tensor_parallel_size={size}",
        action="raise rollout.tensor_parallel_size or gpu_memory_utilization, or shorten rollout.max_tokens",
    )


def _divisors(shape: ModelShape, gpus: int) -> list[int]:
    return [size for size in range(1, gpus + 1) if gpus % size == 0 and shape.num_heads % size == 0]


def _list_colocate(config: RunConfig) -> list[bool]:
    """Return whether engines may share the policy's GPUs."""
    rollout = config.rollout
    if rollout.colocate is not None or not config.has_engines or config.eval.only or not count_gpus(config):
        return [bool(rollout.colocate)]
    num_workers = config.policy.num_workers
    leaves_gpus = num_workers is not None and num_workers < _count_free(config)
    is_apart = leaves_gpus or config.policy.node_group != rollout.node_group
    if rollout.max_off_policy_steps > 0 or rollout.weight_transfer == "nccl" or is_apart:
        return [False]
    return [True] if rollout.weight_transfer == "ipc" else [True, False]


def _list_workers(config: RunConfig, size: int) -> list[int | None]:
    """Return the numbers of policy workers beside engines of `size` GPUs; None: placement.py's rule."""
    policy, gpus = config.policy, _count_free(config)
    dedicated = config.has_critic and config.critic.is_dedicated
    is_fixed = policy.num_workers is not None or policy.node_group != config.rollout.node_group or dedicated
    if is_fixed or config.rollout.colocate or not config.has_engines or config.eval.only or gpus < 2:
        return [policy.num_workers]
    parts = _PARTS if gpus <= _MANY else _PARTS // 2
    counts = {max(size, gpus * part // parts // size * size) for part in range(1, parts)}
    return [count for count in sorted(counts) if count + size <= gpus]


def _list_offload(config: RunConfig) -> list[str]:
    """Return where the optimizer's state may be; with `all` in host memory a step is too slow to be chosen."""
    policy = config.policy
    if policy.offload != "auto":
        return [policy.offload]
    can = count_gpus(config) and (policy.backend == "fsdp2" or policy.zero_stage >= 1)
    return ["none", "optimizer"] if can else ["none"]


OTHER_ATTENTION = ("Gemma2ForCausalLM", "GptOssForCausalLM")
"""Models with caps or sinks, whose attention cannot exchange heads. The trainer refuses others when it loads them."""


def can_exchange(shape: ModelShape) -> bool:
    """Return whether the layers of a model can exchange tokens for heads, as far as its shape shows it."""
    return not (shape.vision_parameters or shape.num_linear_layers or shape.architecture in OTHER_ATTENTION)


def list_contexts(config: RunConfig, shape: ModelShape) -> list[int]:
    """Return the sizes of context groups, within a node, if no other layout fits; none if excluded."""
    policy, groups = config.policy, groups_for(config, "policy")
    gpus = min((group.gpus_per_node for group in groups), default=config.cluster.gpus_per_node)
    is_excluded = policy.backend == "deepspeed" or policy.prefix_sharing or config.model.attention not in VARLEN
    can_be_smaller = (policy.micro_batch_tokens or 0) > config.max_sequence_tokens
    if policy.context_parallel != "auto" or is_excluded or not can_exchange(shape) or can_be_smaller:
        return []
    sizes = (size for size in range(2, gpus + 1) if gpus % size == 0)
    return [size for size in sizes if divides_heads(size, shape.num_heads, shape.num_kv_heads)]


def count_gpus(config: RunConfig) -> int:
    return sum(node.gpus_per_node for node in list_nodes(config))


def _count_free(config: RunConfig) -> int:
    """Return the GPUs for policy and engines."""
    return count_gpus(config) - (config.reference.num_workers or 0) - config.reward.num_service_gpus
