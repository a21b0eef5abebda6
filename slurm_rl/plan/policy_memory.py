"""Memory of a training worker by phase, on its GPU and in host memory, estimated from the model's shape.

    states    parameters, gradients, moments: ZeRO (Rajbhandari et al. 2020) with float32 master weights
    passing   gathered layers, activations (Korthikanti et al. 2022, without attention scores, which flash attention
              does not store), logits: the peak of four moments of a step, see `_find_peak`

tests/unit/models/test_fake_world.py compares FSDP2 with the allocations of the training code, and
`python -m tests.memory_table` prints both. Fragmentation, NCCL buffers and the CUDA context are a flat reserve.
"""

from dataclasses import dataclass, replace

from slurm_rl.plan.memory import GB, ModelShape

RESERVE_GB = 3.0
_BUCKET = 2**28
"""Bytes of tensors gathered at once for the engines, as in models/gather.py."""
# DeepSpeed's defaults, in elements: gradient bucket, parameters kept gathered, parameter group of the update.
_ZERO_BUCKET, _ZERO_LIVE, _ZERO_GROUP = 500_000_000, 1_000_000_000, 1_000_000_000


@dataclass(frozen=True)
class PolicyLoad:
    """Settings that determine the memory of a training worker."""

    backend: str
    """`fsdp2` or `deepspeed`."""
    zero_stage: int
    num_workers: int
    bytes_per_value: int
    """2 for bfloat16, 4 for float32."""
    gradient_checkpointing: bool
    micro_batch_tokens: int
    offload: str = "none"
    """State kept in host memory: `none`, `optimizer` or `all`."""
    lora_rank: int | None = None
    """None: all weights are trained."""
    logit_rows: int | None = None
    """Tokens whose logits exist at once; None: the whole micro-batch."""
    entropy_gradient: bool = False
    """The loss has an entropy term."""
    held_bytes: float = 0.0
    """Bytes up to which FSDP2 keeps unreduced gradients until a step's last micro-batch."""

    @property
    def shares_parameters(self) -> bool:
        """Whether layers are gathered before use."""
        if self.backend == "deepspeed":
            return self.zero_stage == 3
        # FSDP2 also gathers on one worker if it converts the dtype or copies from the host.
        return self.num_workers > 1 or self.bytes_per_value == 2 or self.offload == "all"


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
    def total_gb(self) -> float:
        """Peak while training."""
        return self.phases_gb["train"]

    @property
    def resident_gb(self) -> float:
        """Memory between two steps, while engines sample."""
        return self.phases_gb["sample"]


@dataclass(frozen=True)
class _States:
    """Bytes of a worker's states and of gathered layers."""

    weights: float
    gradients: float
    optimizer: float
    update: float
    """Temporary memory of the optimizer's update."""
    kept: float
    """States that stay on the GPU between two steps."""
    left: float
    """Weights that stay gathered after a forward-only pass, such as the probe of new weights."""
    gathered: float
    """Gathered weights of embedding, head and current blocks."""
    bucket: float
    """Preallocated gradient bucket while training."""
    block_gradients: float
    end_gradients: float
    """Gradients of embedding and head, which come last, when no weights are gathered."""
    waiting: float
    """Host memory between two steps."""


def _fsdp2_states(shape: ModelShape, load: PolicyLoad, trained: int, frozen: int) -> _States:
    """Float32 master weights, moments and reduced gradients; embedding, head and two blocks gathered."""
    size, cut, block = load.bytes_per_value, 1 / load.num_workers, shape.layer_parameters
    weights, gradients, moments = (frozen * size + trained * 4) * cut, trained * 4 * cut, trained * 8 * cut
    if load.num_workers > 1 and trained * 4 <= load.held_bytes:
        gradients += trained * 4
    update = trained * 4 * cut  # square root of the second moments, for all parameters at once
    waiting = {"none": 0, "optimizer": moments, "all": weights + gradients + moments}[load.offload]
    if load.offload == "all":
        weights, gradients, moments, update = 0, 0, 0, 0
    elif load.offload == "optimizer":
        moments, update = 0, moments + update
    whole = size * load.shares_parameters
    # A gradient in the model's dtype and its float32 reduction; a single rank copies both.
    summed = (size + 4) * load.shares_parameters * (not frozen)
    return _States(
        weights=weights,
        gradients=gradients,
        optimizer=moments,
        update=update,
        kept=weights + moments,
        left=shape.embedding_parameters * whole,
        gathered=(shape.embedding_parameters + 2 * block) * whole,
        bucket=0,
        block_gradients=block * summed,
        end_gradients=shape.embedding_parameters * summed * (2 if load.num_workers == 1 else 1),
        waiting=waiting,
    )


def _zero_states(shape: ModelShape, load: PolicyLoad, trained: int, frozen: int) -> _States:
    """DeepSpeed's states: stage 3 preallocates its gradient bucket and keeps gathered weights up to a bound."""
    size, stage, cut = load.bytes_per_value, load.zero_stage, 1 / load.num_workers
    weights = (frozen + trained) * size * (cut if stage == 3 else 1)
    # Gradients accumulate in float32 (`grad_accum_dtype`), except in stage 0.
    gradients = trained * (4 if stage else size) * (cut if stage >= 2 else 1)
    optimizer = trained * (12 if size == 2 else 8) * (cut if stage else 1)
    # A copy of a group's gradients, and the square root as above.
    update = min(trained * (cut if stage else 1), _ZERO_GROUP) * 8
    bucket = _ZERO_BUCKET * size if stage else 0
    waiting = {"none": 0, "optimizer": optimizer + gradients, "all": weights + optimizer + gradients}[load.offload]
    if load.offload != "none":
        gradients, optimizer, update = 0, 0, 0
    if load.offload == "all":
        weights = 0
    return _States(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        update=update,
        kept=weights + optimizer + (gradients + bucket if stage == 3 else 0),
        left=0,
        bucket=bucket,
        gathered=min(shape.num_parameters, _ZERO_LIVE + shape.layer_parameters) * size if stage == 3 else 0,
        block_gradients=shape.layer_parameters * size * (not frozen),
        end_gradients=shape.embedding_parameters * size * (not frozen),
        waiting=waiting,
    )


def estimate_policy(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Estimate the memory of one policy worker."""
    trained = shape.num_parameters if load.lora_rank is None else shape.adapter_parameters(load.lora_rank)
    frozen = 0 if load.lora_rank is None else shape.num_parameters
    build = _fsdp2_states if load.backend == "fsdp2" else _zero_states
    states = build(shape, load, trained, frozen)
    gathered, activations, logits, update = _find_peak(shape, load, states)
    passing = gathered + activations + logits + update
    size = load.bytes_per_value
    passing_weights = max(shape.largest_tensor * size, min(2 * _BUCKET, shape.num_parameters * size))
    saved = trained * 12 / load.num_workers if load.backend == "fsdp2" else 0
    phases = {
        "load": states.weights if load.backend == "fsdp2" else states.kept,  # DeepSpeed allocates all states at once
        "train": states.weights + states.gradients + states.optimizer + passing,
        "sample": states.kept + states.left,
        "sync": states.kept + max(passing_weights, states.left and states.left + states.gathered),
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


def block_activations(shape: ModelShape, tokens: int, size: int) -> int:
    """Return the bytes of one block's activations."""
    return tokens * (12 * shape.hidden_size + 4 * shape.intermediate_size) * size


def _find_peak(shape: ModelShape, load: PolicyLoad, states: _States) -> tuple[float, ...]:
    """Return the bytes of gathered layers, activations, logits and update at the peak of a step."""
    size, tokens, trains_head = load.bytes_per_value, load.micro_batch_tokens, load.lora_rank is None
    block = block_activations(shape, tokens, size)
    all_blocks = shape.num_layers * (tokens * shape.hidden_size * size if load.gradient_checkpointing else block)
    # Recomputed activations and gradients of inner values of the block in its backward pass.
    at_work = tokens * shape.intermediate_size * size + (block if load.gradient_checkpointing else 0)
    rows = min(tokens, load.logit_rows or tokens)
    head = shape.vocab_size * shape.hidden_size * size * trains_head
    # Logits, scaled logits and their gradients in float32; an entropy gradient adds probabilities and their inputs.
    logit_bytes = 29 if load.entropy_gradient else 16
    moments = {
        "head": (states.gathered + head * (rows < tokens), all_blocks, rows * shape.vocab_size * logit_bytes, 0),
        "block": (states.gathered + head + states.block_gradients, all_blocks + at_work, 0, 0),
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
    return ((count * 4 if load.offload == "all" else 0) + shape.largest_tensor * size) / load.num_workers


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
