"""Memory of a training worker by phase, on its GPU and in host memory, estimated from the model's shape.

    states    parameters, gradients, moments: ZeRO (Rajbhandari et al. 2020) with float32 master weights
    passing   gathered layers, activations (Korthikanti et al. 2022, without attention scores, which flash attention
              does not store), logits: the peak of six moments of a step, see `_find_peak`

tests/unit/models/test_fake_world.py compares FSDP2 with the allocations of the training code, and
`python -m tests.memory_table` prints both. NCCL buffers and the CUDA context are a flat reserve.
"""

from dataclasses import dataclass, replace

from slurm_rl.plan.activations import all_kept_bytes, final_norm_bytes, input_gradient_bytes, layer_peak
from slurm_rl.plan.memory import GB, ModelShape
from slurm_rl.plan.training_states import PolicyLoad, States, fsdp2_states, rank_share, zero_states

RESERVE_GB = 3.0
_FRAGMENTATION = 0.08
"""Share of temporary memory that the allocator loses. Peaks of reserved memory that prime-rl has published are up to
12 % above the sum of our tensors, for models with experts and 65,536 tokens."""
_BUCKET = 2**28
"""Bytes of tensors gathered at once for the engines, as in models/gather.py."""


@dataclass(frozen=True)
class PolicyMemory:
    """Memory of one worker in GB; the parts are those at the peak of training."""

    weights_gb: float
    gathered_gb: float
    """Gathered weights and gradients of layers."""
    gradients_gb: float
    optimizer_gb: float
    activations_gb: float
    logits_gb: float
    update_gb: float
    """Temporary memory of the optimizer's update."""
    phases_gb: dict[str, float]
    """Peak GPU memory by phase."""
    host_gb: dict[str, float]
    """Host memory by phase: offloaded state and copies."""
    frozen_gb: float = 0.0
    """Frozen model on the same GPU: the policy's reference, sharded like the policy, or the critic's reward model."""

    @property
    def tensors_gb(self) -> float:
        """Sum of all tensors at the peak of training."""
        state = self.weights_gb + self.gradients_gb + self.optimizer_gb + self.frozen_gb
        return state + self.gathered_gb + self.activations_gb + self.logits_gb + self.update_gb

    @property
    def total_gb(self) -> float:
        """Peak while training."""
        return self.phases_gb["train"]

    @property
    def resident_gb(self) -> float:
        """Memory between two steps, while engines sample."""
        return self.phases_gb["sample"]


def estimate_policy(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Estimate the memory of one policy worker."""
    trained, frozen = shape.num_parameters, 0
    if load.lora_rank is not None:
        frozen, trained = trained, shape.adapter_parameters(load.lora_rank, on_experts=load.lora_on_experts)
    build = fsdp2_states if load.backend == "fsdp2" else zero_states
    states = build(shape, load, trained, frozen)
    gathered, activations, logits, update = _find_peak(shape, load, states)
    passing = gathered + activations + logits + update
    size = load.bytes_per_value
    padding = shape.padded_experts(load.num_workers) if load.backend == "fsdp2" else 1
    passing_weights = max(shape.largest_tensor * size * padding, min(2 * _BUCKET, shape.num_parameters * size))
    saved = 12 * rank_share(shape, load, trained) if load.backend == "fsdp2" else 0
    phases = {
        "load": states.weights if load.backend == "fsdp2" else states.kept,  # DeepSpeed allocates all states at once
        "train": states.weights + states.gradients + states.optimizer + passing * (1 + _FRAGMENTATION),
        "sample": states.kept + states.left,
        "sync": states.kept + max(passing_weights, states.left and states.gathered + states.later),
        "save": states.kept,
    }
    host = {"load": _host_load(shape, load), "train": states.waiting, "save": states.waiting + saved}
    return PolicyMemory(
        weights_gb=states.weights / GB,
        gathered_gb=gathered / GB,
        gradients_gb=states.gradients / GB,
        optimizer_gb=states.optimizer / GB,
        activations_gb=activations / GB,
        logits_gb=logits / GB,
        update_gb=update / GB,
        phases_gb={phase: value / GB + RESERVE_GB for phase, value in phases.items()},
        host_gb={phase: value / GB for phase, value in host.items()},
    )


def block_activations(shape: ModelShape, tokens: int, size: int) -> float:
    """Return the bytes of one block's activations."""
    return tokens * layer_peak(shape, recomputes=True) * size / 2


def _find_peak(shape: ModelShape, load: PolicyLoad, states: States) -> tuple[float, ...]:
    """Return the bytes of gathered layers, activations, logits and update at the peak of a step."""
    size, again, trains_head = load.bytes_per_value, load.gradient_checkpointing, load.lora_rank is None
    tokens, wide = load.micro_batch_tokens, load.micro_batch_tokens * load.bytes_per_value / 2
    kept = wide * all_kept_bytes(shape, recomputes=again)
    at_work, final = wide * layer_peak(shape, recomputes=again), wide * final_norm_bytes(shape)
    if load.lora_on_experts:
        # Each layer keeps its merged experts for the backward pass, which adds their gradient.
        merged = shape.num_experts * shape.expert_parameters * size
        kept, at_work = kept + (not again) * shape.num_expert_layers * merged, at_work + merged * (1 + again)
    rows = min(tokens, load.logit_rows or tokens)
    head = shape.vocab_size * shape.hidden_size * size * trains_head
    # Chunks add up the gradient of the head's weights in float32, then convert it. A critic has one row and no chunks.
    summed = head / size * (4 if rows > 1 else size) * (rows < tokens)
    # Logits, scaled logits and their gradients in float32; an entropy gradient adds probabilities and their inputs, of
    # which chunks keep fewer.
    logit_bytes = (24 if rows < tokens else 29) if load.entropy_gradient else 16
    moments: dict[str, tuple[float, ...]] = {
        "head": (states.gathered + summed, kept, rows * shape.vocab_size * logit_bytes, 0),
        "norm": (states.gathered + summed * (size == 2 and rows > 1) + head, kept + final, 0, 0),
        # The gradients of the block before are still summed while a block computes, and its own afterwards.
        "block": (states.gathered + head + states.block_reduction, kept + at_work, 0, 0),
        "reduce": (
            states.gathered + head + states.block_reduction + states.block_gradients,
            kept * (1 - 1 / shape.num_layers) + wide * input_gradient_bytes(shape),
            0,
            0,
        ),
        "embedding": (states.end_gradients, 0, 0, 0),
        "step": (0, 0, 0, states.update),
    }
    gathered, *others = max(moments.values(), key=sum)
    return gathered + states.bucket, *others


def _host_load(shape: ModelShape, load: PolicyLoad) -> float:
    """Return the host bytes while loading: one rank's part of a tensor and offloaded state, or an unsharded model."""
    size, count = load.bytes_per_value, shape.num_parameters
    if not load.shares_parameters:
        return count * size
    if load.backend == "deepspeed":
        return count * size / load.num_workers + shape.largest_tensor * size
    largest = shape.largest_tensor * shape.padded_experts(load.num_workers)
    return ((count * 4 if load.offload == "all" else 0) + largest * size) / load.num_workers


def estimate_frozen(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Estimate a worker that only computes logprobs with an unsharded model."""
    size, tokens = load.bytes_per_value, load.micro_batch_tokens
    weights = shape.num_parameters * size
    block = block_activations(shape, tokens, size)
    # Logits and scaled logits in float32.
    logits = min(tokens, load.logit_rows or tokens) * shape.vocab_size * 8
    idle, busy = weights / GB + RESERVE_GB, (weights + max(block, logits)) / GB + RESERVE_GB
    return PolicyMemory(
        weights_gb=weights / GB,
        gathered_gb=0.0,
        gradients_gb=0.0,
        optimizer_gb=0.0,
        activations_gb=block / GB if block > logits else 0.0,
        logits_gb=logits / GB if logits >= block else 0.0,
        update_gb=0.0,
        phases_gb={"load": idle, "train": busy, "sample": idle, "sync": idle, "save": idle},
        host_gb={"load": weights / GB, "train": 0.0, "save": 0.0},
    )


def estimate_critic(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Estimate a worker of a dedicated critic: a policy with one output instead of a vocabulary."""
    return estimate_policy(replace(shape, is_tied=True), replace(load, lora_rank=None, logit_rows=1))


def with_second_model(memory: PolicyMemory) -> PolicyMemory:
    """Add a critic of the policy's size on the same GPU; they take turns, so gradients and activations count once."""
    both = {name: 2 * getattr(memory, name) for name in ("weights_gb", "optimizer_gb")}
    host = {phase: value + memory.host_gb["train"] for phase, value in memory.host_gb.items()}
    return replace(memory, **both, host_gb=host, phases_gb=_add(memory, memory.resident_gb - RESERVE_GB))


def with_frozen_model(
    memory: PolicyMemory, shape: ModelShape, bytes_per_value: int, num_parts: int = 1
) -> PolicyMemory:
    """Add a frozen model on the same GPU, sharded over `num_parts`."""
    more = shape.num_parameters * bytes_per_value / num_parts / GB
    return replace(memory, frozen_gb=more, phases_gb=_add(memory, more))


def _add(memory: PolicyMemory, more: float) -> dict[str, float]:
    return {phase: value + more for phase, value in memory.phases_gb.items()}
