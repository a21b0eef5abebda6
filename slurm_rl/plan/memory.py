"""Does it fit? GPU memory of a policy worker and of a rollout engine, estimated from the model's shape. Pure.

Estimates, meant to refuse the impossible and to choose batch sizes, not to predict the last gigabyte:
fragmentation, NCCL's buffers and the CUDA context are one flat reserve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

GB = 1e9
_RESERVE_GB = 3.0
# What vLLM needs beside weights and cache: activations of one batch, CUDA graphs, sampling buffers.
_ENGINE_RESERVE_GB = 2.0
# What an engine asleep keeps on its GPU: the CUDA context and NCCL's buffers.
_ASLEEP_GB = 2.0
_CPU_CACHE_BYTES = 2**30
_CPU_BLOCK_TOKENS = 128  # of vLLM's cache on CPU, unless it is told otherwise


@dataclass(frozen=True)
class ModelShape:
    """A decoder as far as memory goes (Llama, Qwen, Mistral and their mixtures of experts)."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    """Width of the gated MLP; of one expert in a mixture."""
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    is_tied: bool
    """The output layer is the embedding."""
    num_experts: int = 1
    context_length: int | None = None
    vision_parameters: int = 0
    """Of the vision tower, when there is one."""

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size * self.num_experts
        return attention + mlp + 2 * self.hidden_size

    def adapter_parameters(self, rank: int) -> int:
        """Of adapters on every linear layer of every block."""
        h, heads, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = 2 * (h + heads) + 2 * (h + kv)
        mlp = 3 * (h + self.intermediate_size) * self.num_experts
        return self.num_layers * rank * (attention + mlp)

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)

    @property
    def cached_values_per_head(self) -> int:
        """Keys and values of one token in one key-value head, in all layers."""
        return 2 * self.num_layers * self.head_dim

    @property
    def num_parameters(self) -> int:
        language = self.num_layers * self.layer_parameters + self.embedding_parameters + self.hidden_size
        return language + self.vision_parameters


def parse_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """Read a Hugging Face config.json, of a vision-language model its language part; None for other families.

    >>> parse_shape({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10,
    ...              "intermediate_size": 128}).num_parameters
    83456
    """
    text = config.get("text_config") or config
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
    if not all(isinstance(text.get(name), int) for name in names):
        return None
    heads, experts = text["num_attention_heads"], text.get("num_experts") or text.get("num_local_experts") or 1
    return ModelShape(
        num_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        intermediate_size=text.get("moe_intermediate_size") or text["intermediate_size"],
        vocab_size=text["vocab_size"],
        num_heads=heads,
        num_kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or text["hidden_size"] // heads,
        is_tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        num_experts=experts,
        context_length=text.get("max_position_embeddings"),
        vision_parameters=_count_vision(config.get("vision_config") or {}),
    )


def _count_vision(vision: Mapping[str, Any]) -> int:
    """Blocks and merger of a Qwen-VL tower; of others, whose config has other names, 0."""
    names = ("depth", "hidden_size", "intermediate_size", "out_hidden_size")
    if not all(isinstance(vision.get(name), int) for name in names):
        return 0
    depth, hidden, inner, out = (vision[name] for name in names)
    merged = hidden * vision.get("spatial_merge_size", 2) ** 2
    return int(depth * (4 * hidden**2 + 3 * hidden * inner) + merged * (merged + out))


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


@dataclass(frozen=True)
class PolicyMemory:
    """Of one worker's GPU, in GB."""

    weights_gb: float
    gathered_gb: float
    """Weights that are whole for a moment, of layers that are sharded."""
    gradients_gb: float
    optimizer_gb: float
    activations_gb: float
    logits_gb: float
    frozen_gb: float = 0.0
    """A model that only answers: the policy's reference, cut as the policy is; the critic's reward model, whole."""

    @property
    def total_gb(self) -> float:
        """While it trains."""
        passing = self.gathered_gb + self.gradients_gb + self.activations_gb + self.logits_gb
        return self.resident_gb + passing

    @property
    def resident_gb(self) -> float:
        """While engines sample: what stays between two steps."""
        return self.weights_gb + self.optimizer_gb + self.frozen_gb + _RESERVE_GB


def estimate_policy(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Memory of one policy worker.

    States: ZeRO (Rajbhandari et al. 2020), mixed precision with float32 master weights and moments.
    Activations: Korthikanti et al. 2022 without attention scores, which neither SDPA nor flash-attention keeps.
    """
    count, size, sharded = shape.num_parameters, load.bytes_per_value, 1 / load.num_workers
    trained = count if load.lora_rank is None else shape.adapter_parameters(load.lora_rank)
    frozen = 0 if load.lora_rank is None else count
    # Two blocks (or the embedding) are gathered in the model's own format.
    gathered = max(2 * shape.layer_parameters, shape.embedding_parameters) * size
    if load.backend == "fsdp2":
        weights = (frozen * size + trained * 4) * sharded
        gradients, optimizer = trained * 4 * sharded, trained * 8 * sharded
    else:
        master = 4 if size == 2 else 0
        weights = (frozen + trained) * size * (sharded if load.zero_stage >= 3 else 1)
        # Accumulated in float32 (`grad_accum_dtype`), which stage 0 cannot.
        gradients = trained * (4 if load.zero_stage else size) * (sharded if load.zero_stage >= 2 else 1)
        gathered = gathered if load.zero_stage >= 3 else 0
        optimizer = trained * (8 + master) * (sharded if load.zero_stage >= 1 else 1)
    if load.offload != "none":
        optimizer = 0.0
    if load.offload == "all":
        weights, gradients = 0.0, 0.0
    tokens = load.micro_batch_tokens
    block = tokens * (12 * shape.hidden_size + 4 * shape.intermediate_size) * size
    kept = shape.num_layers * tokens * shape.hidden_size * size
    activations = kept + block if load.gradient_checkpointing else shape.num_layers * block
    logits = min(tokens, load.logit_rows or tokens) * shape.vocab_size * _logit_bytes(load)
    parts = (weights, gathered, gradients, optimizer, activations, logits)
    return PolicyMemory(*(value / GB for value in parts))


def _logit_bytes(load: PolicyLoad) -> int:
    """Of one row and one entry of the vocabulary, at the peak of the backward pass, by the code's own tensors.

    Logits, logits over the temperature, and the gradients of both, in float32; with the entropy's gradient its
    probabilities and what they are made of, too.
    """
    return 29 if load.entropy_gradient else 16


def with_second_model(memory: PolicyMemory) -> PolicyMemory:
    """With a critic of the policy's size on the same GPU; they take turns, so activations are there once."""
    return replace(
        memory,
        weights_gb=2 * memory.weights_gb,
        gradients_gb=2 * memory.gradients_gb,
        optimizer_gb=2 * memory.optimizer_gb,
    )


def with_frozen_model(
    memory: PolicyMemory, shape: ModelShape, bytes_per_value: int, num_parts: int = 1
) -> PolicyMemory:
    """With a frozen model of this shape on the same GPU, cut into so many parts."""
    return replace(memory, frozen_gb=shape.num_parameters * bytes_per_value / num_parts / GB)


def estimate_critic(shape: ModelShape, load: PolicyLoad) -> PolicyMemory:
    """Memory of one worker of a critic with GPUs of its own: a policy with one output in place of a vocabulary."""
    return replace(estimate_policy(shape, replace(load, lora_rank=None)), logits_gb=0.0)


@dataclass(frozen=True)
class EngineMemory:
    """Of one GPU of a rollout engine, in GB."""

    weights_gb: float
    kv_sequence_gb: float
    """Cache of one longest sequence."""

    @property
    def least_gb(self) -> float:
        """Below this the engine cannot hold a single longest sequence."""
        return self.weights_gb + self.kv_sequence_gb + _ENGINE_RESERVE_GB

    def num_sequences(self, budget_gb: float) -> int:
        """Longest sequences that are decoded at once with this much memory."""
        return max(0, int((budget_gb - self.weights_gb - _ENGINE_RESERVE_GB) / self.kv_sequence_gb))


def estimate_engine(
    shape: ModelShape, *, tensor_parallel_size: int, bytes_per_value: int, longest_tokens: int
) -> EngineMemory:
    """Memory of one GPU of an engine; key-value heads fewer than GPUs are replicated, as vLLM does."""
    heads = max(1, shape.num_kv_heads // tensor_parallel_size)
    per_token = shape.cached_values_per_head * heads * bytes_per_value
    weights = shape.num_parameters * bytes_per_value / tensor_parallel_size
    return EngineMemory(weights / GB, per_token * longest_tokens / GB)


def cpu_cache_bytes(shape: ModelShape | None, *, num_sequences: int, longest_tokens: int, bytes_per_value: int) -> int:
    """Key-value cache of an engine without a GPU: room for so many of the longest sequences, 1 GiB at most.

    More would only be filled with zeros. 1 GiB, too, for a family of models that is not known.
    """
    if shape is None:
        return _CPU_CACHE_BYTES
    blocks = -(-longest_tokens // _CPU_BLOCK_TOKENS)
    per_token = shape.cached_values_per_head * shape.num_kv_heads * bytes_per_value
    # vLLM keeps one block for itself.
    return min(_CPU_CACHE_BYTES, (num_sequences * blocks + 1) * _CPU_BLOCK_TOKENS * per_token)


def asleep_gb() -> float:
    """What a colocated engine keeps while the policy trains."""
    return _ASLEEP_GB
