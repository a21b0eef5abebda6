"""Bytes of parameters, gradients and moments of a training worker, and of layers that it gathers.

ZeRO (Rajbhandari et al. 2020) with float32 master weights, as FSDP2 and DeepSpeed split them.
"""

from dataclasses import dataclass

from slurm_rl.plan.memory import ModelShape

# Parameters whose offloaded moments are on the GPU together, as in models/offload.py.
_MOMENT_BUCKET = 2**26
# DeepSpeed's defaults, in elements: gradient bucket, parameters kept gathered, parameter group of the update.
_ZERO_BUCKET, _ZERO_LIVE, _ZERO_GROUP = 500_000_000, 1_000_000_000, 1_000_000_000


@dataclass(frozen=True)
class PolicyLoad:
    """Settings that determine the memory of a training worker."""

    backend: str
    """`fsdp2` or `deepspeed`."""
    zero_stage: int
    num_workers: int
    """Ranks that share the states: all of DeepSpeed's, or those of a replica."""
    bytes_per_value: int
    """2 for bfloat16, 4 for float32."""
    gradient_checkpointing: bool
    micro_batch_tokens: int
    """Tokens of a micro-batch on each rank."""
    offload: str = "none"
    """State kept in host memory: `none`, `optimizer` or `all`."""
    lora_rank: int | None = None
    """None: all weights are trained."""
    lora_on_experts: bool = False
    """Joined experts have adapters, too."""
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
class States:
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
    later: float
    """The largest gathered block or embedding, which another block's passing adds in the probe of new weights."""
    block_reduction: float
    """Gradients of a block on their way to the ranks that keep them, in float32."""
    block_gradients: float
    end_gradients: float
    """Gradients of embedding and head, which come last, when no weights are gathered."""
    waiting: float
    """Host memory between two steps."""


def rank_share(shape: ModelShape, load: PolicyLoad, count: int) -> float:
    """Return the largest rank's part of `count` parameters, all of the model or adapters."""
    experts = shape.num_expert_layers * shape.num_experts * shape.expert_parameters
    if load.backend != "fsdp2" or count < shape.num_parameters:
        return count / load.num_workers
    return (count + experts * (shape.padded_experts(load.num_workers) - 1)) / load.num_workers


def _gathered_layer(shape: ModelShape, load: PolicyLoad) -> float:
    """Return the parameters of a gathered layer, with the padding of experts."""
    more = shape.padded_experts(load.num_workers) - 1
    return shape.layer_parameters + more * shape.num_experts * shape.expert_parameters


def fsdp2_states(shape: ModelShape, load: PolicyLoad, trained: int, frozen: int) -> States:
    """Float32 master weights, moments and reduced gradients; embedding, head and two blocks gathered."""
    size, block = load.bytes_per_value, _gathered_layer(shape, load)
    own, own_frozen = rank_share(shape, load, trained), rank_share(shape, load, frozen)
    weights, gradients, moments = own_frozen * size + own * 4, own * 4, own * 8
    held = trained * 4 if load.num_workers > 1 and trained * 4 <= load.held_bytes else 0
    waiting = {"none": 0.0, "optimizer": moments, "all": weights + gradients + held + moments}[load.offload]
    # The last micro-batch frees whole gradients while it reduces them.
    gradients = max(gradients, held)
    update = 0.0  # the fused kernel needs none
    if load.offload == "all":
        weights, gradients, moments = 0, 0, 0
    elif load.offload == "optimizer":
        # Two buckets of moments, as in models/offload.py; a bucket holds one tensor at least.
        largest = max(_MOMENT_BUCKET, shape.largest_tensor / load.num_workers)
        moments, update = 0, min(moments, 2 * 8 * largest)
    whole = size * load.shares_parameters
    copy = block if shape.shards_across_experts(load.num_workers) else 0
    shares = load.shares_parameters * (not frozen)
    return States(
        weights=weights,
        gradients=gradients,
        optimizer=moments,
        update=update,
        kept=weights + moments,
        left=shape.embedding_parameters * whole,
        gathered=(shape.embedding_parameters + 2 * block) * whole,
        bucket=0,
        later=(max(shape.embedding_parameters, block) + copy) * whole,
        block_reduction=block * 4 * shares,
        block_gradients=shape.layer_parameters * size * shares,
        # A single rank copies them.
        end_gradients=shape.embedding_parameters * (size + 4) * shares * (2 if load.num_workers == 1 else 1),
        waiting=waiting,
    )


def zero_states(shape: ModelShape, load: PolicyLoad, trained: int, frozen: int) -> States:
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
    return States(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        update=update,
        kept=weights + optimizer + (gradients + bucket if stage == 3 else 0),
        left=0,
        later=0,
        bucket=bucket,
        gathered=min(shape.num_parameters, _ZERO_LIVE + shape.layer_parameters) * size if stage == 3 else 0,
        block_reduction=shape.layer_parameters * size * (not frozen),
        block_gradients=0,
        end_gradients=shape.embedding_parameters * size * (not frozen),
        waiting=waiting,
    )
