"""Estimate of a GRPO step's time from bytes, FLOPs and the GPU's rates; ranks layouts, and promises no number.

sample     decoding reads the weights and the cache of all running sequences once per token (memory-bound), or is
           bound by its FLOPs; completions beyond the engine's room wait; the longest completion ends the phase
logprobs   forward passes of the reference and, with several updates, of the old policy
train      forward and backward passes; FSDP gathers and reduces each micro-batch at the same time
sync       gather the weights and send them to the engines
switch     colocated engines sleep and wake
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_rl.plan.memory import GB
from slurm_rl.plan.role_memory import count_trained
from slurm_rl.plan.step_times import StepEstimate
from slurm_rl.plan.transfer import swaps_adapters

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig
    from slurm_rl.plan.gpus import Gpu
    from slurm_rl.plan.setting import Setting

# Assumed lengths, as shares of data.max_prompt_tokens and rollout.max_tokens; NeMo-RL's tables have 0.70 to 0.78 of
# the longest sequence in all.
_PROMPT_SHARE, _COMPLETION_SHARE = 0.5, 0.7
# One decoding iteration without its reads: scheduler and sampler, per iteration and per sequence; one all-reduce.
_ITERATION_S, _PER_SEQUENCE_S, _REDUCE_S = 4e-3, 2e-5, 12e-6
_PREFILL_SHARE = 0.5
"""Share of the peak FLOPs that prefill reaches."""
_EXPERT_SHARE = 0.4
"""Factor of the FLOP rate for experts: prime-rl's trainer table has 15 % for 30B-A3B where a dense 4B has 36 %."""
_FULL_TOKENS = 1024
"""Micro-batch tokens at which training reaches half of its FLOP rate."""
_LINK_SHARE, _HOST_GB_S, _STORE_GB_S = 0.8, 25.0, 2.0
"""Share of a link's rate in collectives; PCIe between GPU and host; Ray's object store."""
_CPU_ADAM_GB_S = 200.0
"""Host memory bandwidth of a node for the update of offloaded parameters."""
_SYNC_S, _SWITCH_S = 0.3, 3.0
"""Fixed parts of a sync, and of engines that sleep and wake."""


@dataclass(frozen=True)
class Workload:
    """Sequences of one step and their lengths in tokens."""

    num_prompts: int
    num_sequences: int
    prompt: float
    """Mean prompt."""
    completion: float
    """Mean completion."""
    longest: float
    """Longest completion."""

    @property
    def num_tokens(self) -> float:
        """Tokens that a step trains on, with prompts."""
        return self.num_sequences * (self.prompt + self.completion)


def build_workload(config: RunConfig) -> Workload:
    """Return the assumed batch of a step."""
    prompts, longest = config.trainer.prompts_per_step, config.rollout.max_tokens
    return Workload(
        prompts,
        prompts * config.algorithm.group_size,
        _PROMPT_SHARE * config.data.max_prompt_tokens,
        _COMPLETION_SHARE * longest,
        longest,
    )


def estimate_step(setting: Setting, gpus: dict[str, Gpu], workload: Workload | None = None) -> StepEstimate:
    """Estimate a step of a setting whose values are all set.

    Args:
        gpus: GPU of `policy` and `rollout`.
    """
    config, work = setting.config, workload or build_workload(setting.config)
    engines, workers = setting.num_workers["rollout"], setting.num_workers["policy"]
    asked = _num_asked(setting, work)
    at_once = max(1, min(asked, setting.num_running(work.prompt + work.completion)))
    sample = sampling_s(setting, gpus["rollout"], work)
    seconds = {
        "sample": sample,
        "logprobs": _logprobs_s(setting, gpus["policy"], work),
        "train": training_s(setting, gpus["policy"], work),
        "sync": _sync_s(setting, gpus["policy"]),
        "switch": _SWITCH_S if setting.colocated else 0.0,
    }
    return StepEstimate(
        seconds,
        work.num_tokens,
        workers + (0 if setting.colocated else engines * setting.tensor_parallel_size),
        at_once,
        asked,
        waiting_s=sample - sampling_s(setting, gpus["rollout"], work, asked),
        overlaps=config.rollout.max_off_policy_steps > 0,
    )


def _num_asked(setting: Setting, work: Workload) -> int:
    """Return the sequences that an engine decodes at once with an unlimited cache."""
    return max(1, min(setting.config.rollout.max_num_seqs, _share(setting, work)))


def _share(setting: Setting, work: Workload) -> int:
    return math.ceil(work.num_sequences / setting.num_workers["rollout"])


def sampling_s(setting: Setting, gpu: Gpu, work: Workload, at_once: int | None = None) -> float:
    """Return the seconds in which an engine samples its share of the batch.

    Args:
        at_once: sequences that it decodes at once; None: as many as its cache holds.
    """
    shape, size, share = setting.shape, setting.tensor_parallel_size, _share(setting, work)
    at_once = at_once or max(1, min(_num_asked(setting, work), setting.num_running(work.prompt + work.completion)))
    flops = shape.forward_flops(int(work.prompt + work.completion)) / (size * gpu.tflops * 1e12 * _PREFILL_SHARE)
    prefill = share * work.num_prompts / work.num_sequences * work.prompt * flops

    def decode(running: float) -> float:
        weights = setting.engine.weights_gb * _share_read(setting, running)
        read = weights + running * setting.cache_gb(work.prompt + work.completion / 2)
        work_s = max(read / (gpu.bandwidth_gb_s * gpu.read_share), running * flops)
        return work_s + _ITERATION_S + running * _PER_SEQUENCE_S + (size > 1) * 2 * shape.num_layers * _REDUCE_S

    full = share * work.completion / at_once * decode(at_once)
    tail = 0.0 if setting.config.rollout.inflight_weight_updates else work.longest - work.completion
    return prefill + full + tail * decode(max(1.0, at_once / 4))


def _share_read(setting: Setting, running: float) -> float:
    """Return the share of the weights that an iteration reads: few sequences do not reach all experts."""
    shape = setting.shape
    experts = shape.num_expert_layers * shape.num_experts * shape.expert_parameters / shape.num_parameters
    return 1 - experts * (1 - shape.experts_per_token / shape.num_experts) ** running if experts else 1.0


def training_s(setting: Setting, gpu: Gpu, work: Workload) -> float:
    """Return the seconds of all updates of a step; only the order matters to the choice of a micro-batch."""
    config, shape = setting.config, setting.shape
    passes = 4 if config.model.gradient_checkpointing is True else 3
    head = shape.vocab_size * shape.hidden_size * 2 if config.policy.chunk_tokens else 0
    tokens = work.num_tokens / setting.num_workers["policy"] * config.trainer.num_epochs
    compute = (passes * shape.forward_flops(int(work.prompt + work.completion)) + head) * tokens
    # Gathered twice in the model's dtype; gradients reduced in float32.
    moved = shape.num_parameters * (2 * setting.bytes_per_value + (4 if config.model.lora is None else 0))
    per_batch = _pass_s(setting, gpu, compute, moved, tokens) * (1 + config.has_critic)
    return per_batch + config.trainer.num_updates * _update_s(setting, gpu)


def _logprobs_s(setting: Setting, gpu: Gpu, work: Workload) -> float:
    config = setting.config
    count = (config.algorithm.kl.coef > 0) + (config.trainer.num_updates > 1) + config.has_critic
    tokens = work.num_tokens / setting.num_workers["policy"]
    compute = setting.shape.forward_flops(int(work.prompt + work.completion)) * tokens
    moved = setting.shape.num_parameters * setting.bytes_per_value
    return count * _pass_s(setting, gpu, compute, moved, tokens)


def _pass_s(setting: Setting, gpu: Gpu, compute: float, moved: float, tokens: float) -> float:
    """Return the seconds of passes over `tokens` of a rank: its FLOPs, or the weights that each micro-batch moves."""
    config = setting.config
    world = setting.num_workers["policy"] // config.policy.num_replicas
    size = (config.policy.micro_batch_tokens or 1) / config.policy.context
    rate = gpu.tflops * 1e12 * gpu.train_share * size / (size + _FULL_TOKENS)
    rate *= _EXPERT_SHARE if setting.shape.num_experts > 1 else 1
    rate /= 2 if config.model.dtype == "float32" else 1
    batches = math.ceil(tokens / size / config.trainer.num_updates) * config.trainer.num_updates
    moving = moved / GB / _collective_gb_s(config, gpu, world) if world > 1 else 0.0
    if config.policy.offload == "all":
        moving += moved / world / GB / _HOST_GB_S
    return max(compute / rate, batches * moving)


def _update_s(setting: Setting, gpu: Gpu) -> float:
    """Return the seconds of the optimizer: reads and writes of the states, or their way over PCIe."""
    config, shape = setting.config, setting.shape
    part = count_trained(config, shape) / (setting.num_workers["policy"] // config.policy.num_replicas) / GB
    if config.policy.offload == "all":
        return 28 * part * max(1, config.cluster.gpus_per_node) / _CPU_ADAM_GB_S
    moved = 16 * part / _HOST_GB_S if config.policy.offload == "optimizer" else 0.0
    return moved + 28 * part / (gpu.bandwidth_gb_s * gpu.read_share)


def _sync_s(setting: Setting, gpu: Gpu) -> float:
    config, shape = setting.config, setting.shape
    if config.model.lora is not None and swaps_adapters(config, shape):
        return _SYNC_S + 4 * count_trained(config, shape) / GB / _STORE_GB_S
    size = shape.num_parameters * setting.bytes_per_value / GB
    gather = size / _collective_gb_s(config, gpu, setting.num_workers["policy"])
    if config.rollout.weight_transfer == "ray":
        return _SYNC_S + gather + size / _STORE_GB_S
    if setting.colocated:
        return _SYNC_S + gather + size / (gpu.link_gb_s * _LINK_SHARE)
    # Rank 0 sends to all engines by one adapter.
    return (
        _SYNC_S + gather + size / (_LINK_SHARE * (gpu.network_gb_s if config.cluster.num_nodes > 1 else gpu.link_gb_s))
    )


def _collective_gb_s(config: RunConfig, gpu: Gpu, world: int) -> float:
    """Return a rank's rate in collectives: over nodes, the node's adapters together carry each byte once."""
    per_node = max(1, config.cluster.gpus_per_node)
    rate = gpu.link_gb_s if world <= per_node else min(gpu.link_gb_s, gpu.network_gb_s * per_node)
    return rate * _LINK_SHARE
