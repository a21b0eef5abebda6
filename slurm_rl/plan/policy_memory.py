"""What a worker that trains holds by phase, on its GPU and in host memory, estimated from the model's shape. Pure.

    states    parameters, gradients, moments: ZeRO (Rajbhandari et al. 2020) with float32 master weights
    passing   layers that are whole for a moment, activations (Korthikanti et al. 2022, without attention scores, which
              flash attention does not keep), logits: the most of four moments of a step, see `_find_peak`

tests/unit/models/test_fake_world.py holds FSDP2 to what the training code allocates, `python -m tests.memory_table`
prints the two side by side. Fragmentation, NCCL's buffers and the CUDA context are one flat reserve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slurm_rl.plan.memory import GB, ModelShape

RESERVE_GB = 3.0
_BUCKET = 2**28
"""Bytes of whole tensors that are gathered at once for the engines, as engine/gather.py has it."""
# DeepSpeed's own defaults: elements of a bucket of gradients, of parameters that stay whole, of a group in its step.
_ZERO_BUCKET, _ZERO_LIVE, _ZERO_GROUP = 500_000_000, 1_000_000_000, 1_000_000_000


@dataclass(frozen=True)
class PolicyLoad:
    """What decides how much a policy worker holds."""

    backend: str
    """`fsdp2` or `deepspeed`."""
    zero_stage: int
    num_workers: int
    bytes_per_value: int
    """2 for bfloat16, 4 for float32."""
    gradient_checkpointing: bool
    micro_batch_tokens: int
    offload: str = "none"
    """`none`, `optimizer` or `all`: what waits in host memory."""
    lora_rank: int | None = None
    """None: all weights are trained."""
    logit_rows: int | None = None
    """Tokens whose logits exist at once; None: those of the micro-batch."""
    entropy_gradient: bool = False
    """The loss differentiates the entropy."""
    held_bytes: float = 0.0
    """FSDP2 keeps gradients whole until a step's last micro-batch if they take no more."""

    @property
    def shares_parameters(self) -> bool:
        return self.zero_stage == 3 if self.backend == "deepspeed" else self.num_workers > 1 or self.is_cast

    @property
    def is_cast(self) -> bool:
        """FSDP2 gathers a block in another type, or from the host, also with one worker."""
        return self.bytes_per_value == 2 or self.offload == "all"


@dataclass(frozen=True)
class PolicyMemory:
    """Of one worker, in GB. The parts are those at the peak of training, whichever moment that is."""

    weights_gb: float
    gathered_gb: float
    """Weights and gradients of layers that are whole for a moment."""
    gradients_gb: float
    optimizer_gb: float
    activations_gb: float
    logits_gb: float
    update_gb: float
    """What the optimizer's step takes beside its state."""
    phases_gb: dict[str, float]
    """The most that each phase needs of the GPU."""
    host_gb: dict[str, float]
    """Of host memory: what waits there, and copies."""
    frozen_gb: float = 0.0
    """A model that only answers: the policy's reference, cut as the policy is; the critic's reward model, whole."""

    @property
    def total_gb(self) -> float:
        """While it trains."""
        return self.phases_gb["train"]

    @property
    def resident_gb(self) -> float:
        """What stays between two steps, while engines sample."""
        return self.phases_gb["sample"]


@dataclass(frozen=True)
class _States:
    """Bytes of all parameters' states on one worker's GPU, and of layers that are whole for a moment."""

    weights: float
    gradients: float
    optimizer: float
    update: float
    """What the optimizer's step takes beside them."""
    kept: float
    """What of them stays between two steps."""
    left: float
    """Weights that are still whole after a pass that only reads, as the probe of new weights is."""
    gathered: float
    """Weights of the embedding, of the head and of the blocks at hand."""
    bucket: float
    """Laid out for them while it trains."""
    block_gradients: float
    end_gradients: float
    """Of embedding and head, which come last, when nothing is gathered any more."""
    waiting: float
    """In host memory between two steps."""


def _fsdp2_states(shape: ModelShape, load: PolicyLoad, trained: int, frozen: int) -> _States:
    """Master weights, moments and sums of gradients in float32; embedding, head and two blocks gathered."""
    size, cut, block = load.bytes_per_value, 1 / load.num_workers, shape.layer_parameters
    weights, gradients, moments = (frozen * size + trained * 4) * cut, trained * 4 * cut, trained * 8 * cut
    if load.num_workers > 1 and trained * 4 <= load.held_bytes:
        gradients += trained * 4
    update = trained * 4 * cut  # the root of the second moments, of all at once
    waiting = {"none": 0, "optimizer": moments, "all": weights + gradients + moments}[load.offload]
    if load.offload == "all":
        weights, gradients, moments, update = 0, 0, 0, 0
    elif load.offload == "optimizer":
        moments, update = 0, moments + update
    whole = size * load.shares_parameters
    # A gradient in the model's type, and its sum over ranks in float32; one rank alone copies both.
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
    """DeepSpeed's: what stage 3 sums gradients in is laid out once, what it gathers stays up to a bound."""
    size, stage, cut = load.bytes_per_value, load.zero_stage, 1 / load.num_workers
    weights = (frozen + trained) * size * (cut if stage == 3 else 1)
    # Accumulated in float32 (`grad_accum_dtype`), which stage 0 cannot.
    gradients = trained * (4 if stage else size) * (cut if stage >= 2 else 1)
    optimizer = trained * (12 if size == 2 else 8) * (cut if stage else 1)
    # A group's gradients again, and the root as above.
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
    """Memory of one policy worker."""
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
        "load": states.weights if load.backend == "fsdp2" else states.kept,  # DeepSpeed makes the states at once
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


def _find_peak(shape: ModelShape, load: PolicyLoad, states: _States) -> tuple[float, ...]:
    """Bytes beside the states at the worst moment: of whole layers, activations, logits and the update."""
    size, tokens, trains_head = load.bytes_per_value, load.micro_batch_tokens, load.lora_rank is None
    block = tokens * (12 * shape.hidden_size + 4 * shape.intermediate_size) * size
    all_blocks = shape.num_layers * (tokens * shape.hidden_size * size if load.gradient_checkpointing else block)
    # Of the block whose backward pass runs: what is computed again, and gradients of its inner values.
    at_work = tokens * shape.intermediate_size * size + (block if load.gradient_checkpointing else 0)
    rows = min(tokens, load.logit_rows or tokens)
    head = shape.vocab_size * shape.hidden_size * size * trains_head
    moments = {
        "head": (states.gathered + head * (rows < tokens), all_blocks, rows * shape.vocab_size * _logit_bytes(load), 0),
        "block": (states.gathered + head + states.block_gradients, all_blocks + at_work, 0, 0),
        "embedding": (states.end_gradients, 0, 0, 0),
        "step": (0, 0, 0, states.update),
    }
    gathered, *others = max(moments.values(), key=sum)
    return gathered + states.bucket, *others


def _logit_bytes(load: PolicyLoad) -> int:
    """Of one row and one entry of the vocabulary, at the peak of the backward pass, by the code's own tensors.

    Logits, logits over the temperature, and the gradients of both, in float32; with the entropy's gradient its
    probabilities and what they are made of, too.
    """
    return 29 if load.entropy_gradient else 16


def _host_load(shape: ModelShape, load: PolicyLoad) -> float:
    """Bytes while the model is loaded: the rows of one tensor, and what stays; or all of it, where nothing is cut."""
    size, count = load.bytes_per_value, shape.num_parameters
    if not load.shares_parameters:
        return count * size
    if load.backend == "deepspeed":
        return count * size / load.num_workers + shape.largest_tensor * size
    return ((count * 4 if load.offload == "all" else 0) + shape.largest_tensor * size) / load.num_workers


def estimate_frozen(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Memory of a worker that holds a whole model apart and only says its log-probabilities: no gradient, no state."""
    size, tokens = load.bytes_per_value, load.micro_batch_tokens
    weights = shape.num_parameters * size
    block = tokens * (12 * shape.hidden_size + 4 * shape.intermediate_size) * size
    # Logits, and these over the temperature, in float32.
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


def with_second_model(memory: PolicyMemory) -> PolicyMemory:
    """With a critic of the policy's size on the same GPU; they take turns, so one of them has its states alone."""
    both = {name: 2 * getattr(memory, name) for name in ("weights_gb", "optimizer_gb")}
    host = {phase: value + memory.host_gb["train"] for phase, value in memory.host_gb.items()}
    return replace(memory, **both, host_gb=host, phases_gb=_add(memory, memory.resident_gb - RESERVE_GB))


def with_frozen_model(
    memory: PolicyMemory, shape: ModelShape, bytes_per_value: int, num_parts: int = 1
) -> PolicyMemory:
    """With a frozen model of this shape on the same GPU, cut into so many parts."""
    more = shape.num_parameters * bytes_per_value / num_parts / GB
    return replace(memory, frozen_gb=more, phases_gb=_add(memory, more))


def _add(memory: PolicyMemory, more: float) -> dict[str, float]:
    return {phase: value + more for phase, value in memory.phases_gb.items()}


def estimate_critic(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Memory of one worker of a critic with GPUs of its own: a policy with one output in place of a vocabulary."""
    return estimate_policy(replace(shape, is_tied=True), replace(load, lora_rank=None, logit_rows=1))
