"""A model's shape, and what a rollout engine needs for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GB = 1e9
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
        """Parameters of adapters on every linear layer of every block; a mixture's experts are not linear layers."""
        h, heads, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = 2 * (h + heads) + 2 * (h + kv)
        mlp = 3 * (h + self.intermediate_size) if self.num_experts == 1 else 0
        return self.num_layers * rank * (attention + mlp)

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)

    @property
    def largest_tensor(self) -> int:
        """Parameters of the largest one."""
        return max(self.vocab_size, self.intermediate_size) * self.hidden_size

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
    """Blocks and merger of a Qwen-VL tower; of others, whose config has other names, 0."""
    names = ("depth", "hidden_size", "intermediate_size", "out_hidden_size")
    if not all(isinstance(vision.get(name), int) for name in names):
        return 0
    depth, hidden, inner, out = (vision[name] for name in names)
    merged = hidden * vision.get("spatial_merge_size", 2) ** 2
    return int(depth * (4 * hidden**2 + 3 * hidden * inner) + merged * (merged + out))


@dataclass(frozen=True)
class EngineMemory:
    """Of one GPU of a rollout engine, in GB."""

    weights_gb: float
    kv_sequence_gb: float
    """Cache of one longest sequence."""

    @property
    def awake_gb(self) -> float:
        """With its weights alone, while new ones arrive."""
        return self.weights_gb + _ENGINE_RESERVE_GB

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
