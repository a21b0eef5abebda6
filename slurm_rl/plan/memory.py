"""Shape of a model, and the memory of a rollout engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GB = 1e9
# vLLM's activations of one batch, CUDA graphs and sampling buffers.
_ENGINE_RESERVE_GB = 2.0
# CUDA context and NCCL buffers of a sleeping engine.
ASLEEP_GB = 2.0
_CPU_CACHE_BYTES = 2**30
_CPU_BLOCK_TOKENS = 128  # default block of vLLM's KV cache on CPU


PROCESS_GB = 1.0
"""CUDA context, kernels and allocator slack of a process that computes on a GPU."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder that determine its memory (Llama, Qwen, Mistral and their mixtures of experts)."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    """Width of the gated MLP, or of one expert."""
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    is_tied: bool
    """The output layer shares the embedding."""
    num_experts: int = 1
    context_length: int | None = None
    vision_parameters: int = 0
    """Parameters of the vision tower."""

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size * self.num_experts
        return attention + mlp + 2 * self.hidden_size

    def adapter_parameters(self, rank: int) -> int:
        """Return the parameters of adapters on all linear layers of all blocks; experts are not linear layers."""
        h, heads, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = 2 * (h + heads) + 2 * (h + kv)
        mlp = 3 * (h + self.intermediate_size) if self.num_experts == 1 else 0
        return self.num_layers * rank * (attention + mlp)

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)

    @property
    def largest_tensor(self) -> int:
        """Parameters of the largest tensor."""
        return max(self.vocab_size, self.intermediate_size) * self.hidden_size

    @property
    def cached_values_per_head(self) -> int:
        """Cached keys and values of one token in one key-value head, over all layers."""
        return 2 * self.num_layers * self.head_dim

    @property
    def num_parameters(self) -> int:
        language = self.num_layers * self.layer_parameters + self.embedding_parameters + self.hidden_size
        return language + self.vision_parameters


def parse_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """Parse a Hugging Face config.json, or its text_config; None for unsupported families.

    >>> parse_shape({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10,
    ...              "intermediate_size": 128}).num_parameters
    83520
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
    """Return the parameters of a Qwen-VL tower's blocks and merger; 0 for others."""
    names = ("depth", "hidden_size", "intermediate_size", "out_hidden_size")
    if not all(isinstance(vision.get(name), int) for name in names):
        return 0
    depth, hidden, inner, out = (vision[name] for name in names)
    merged = hidden * vision.get("spatial_merge_size", 2) ** 2
    return int(depth * (4 * hidden**2 + 3 * hidden * inner) + merged * (merged + out))


@dataclass(frozen=True)
class EngineMemory:
    """Memory of one GPU of a rollout engine, in GB."""

    weights_gb: float
    kv_sequence_gb: float
    """KV cache of one longest sequence."""

    @property
    def awake_gb(self) -> float:
        """Memory without a KV cache, while new weights arrive."""
        return self.weights_gb + _ENGINE_RESERVE_GB

    @property
    def least_gb(self) -> float:
        """Memory that holds a single longest sequence."""
        return self.weights_gb + self.kv_sequence_gb + _ENGINE_RESERVE_GB

    def num_sequences(self, budget_gb: float) -> int:
        """Return how many longest sequences fit into this budget."""
        return max(0, int((budget_gb - self.weights_gb - _ENGINE_RESERVE_GB) / self.kv_sequence_gb))


@dataclass(frozen=True)
class ServiceMemory:
    """Memory of one reward service's GPU, in GB. ServiceMemory(2, 16.1, 1.3, 32.0): two workers use 36.8 of 32."""

    num_workers: int
    weights_gb: float
    passing_gb: float
    """Activations of a forward pass over reward.model.batch_size longest sequences."""
    gpu_gb: float
    """Memory of the smallest GPU of a service."""

    @property
    def total_gb(self) -> float:
        return self.num_workers * (self.weights_gb + self.passing_gb + PROCESS_GB)

    def __str__(self) -> str:
        workers = "1 worker," if self.num_workers == 1 else f"{self.num_workers} workers, each"
        return (
            f"{workers} weights {self.weights_gb:.1f}, activations {self.passing_gb:.1f} and {PROCESS_GB:.1f} of its "
            "process"
        )


def estimate_engine(
    shape: ModelShape, *, tensor_parallel_size: int, bytes_per_value: int, longest_tokens: int
) -> EngineMemory:
    """Estimate one GPU of an engine; vLLM replicates key-value heads if there are fewer than GPUs."""
    heads = max(1, shape.num_kv_heads // tensor_parallel_size)
    per_token = shape.cached_values_per_head * heads * bytes_per_value
    weights = shape.num_parameters * bytes_per_value / tensor_parallel_size
    return EngineMemory(weights / GB, per_token * longest_tokens / GB)


def cpu_cache_bytes(shape: ModelShape | None, *, num_sequences: int, longest_tokens: int, bytes_per_value: int) -> int:
    """Return the KV cache of an engine on CPU: `num_sequences` longest sequences, at most 1 GiB, which vLLM zero-fills.

    An unknown shape gets 1 GiB.
    """
    if shape is None:
        return _CPU_CACHE_BYTES
    blocks = -(-longest_tokens // _CPU_BLOCK_TOKENS)
    per_token = shape.cached_values_per_head * shape.num_kv_heads * bytes_per_value
    # vLLM reserves one block.
    return min(_CPU_CACHE_BYTES, (num_sequences * blocks + 1) * _CPU_BLOCK_TOKENS * per_token)
