"""Shape of a model, and the memory of a rollout engine."""

from dataclasses import dataclass, replace

from slurm_rl.config.parallel import choose_shard_dim

GB = 1e9
# CUDA graphs of vLLM's batch sizes, up to 512 sequences; a guess, as they depend on kernels.
_GRAPHS_GB = 1.0
# Bytes per sequence and vocabulary entry while vLLM samples: logits in float32 and a copy, sorted values with 8-byte
# indices, probabilities and their sums (v1/sample/ops/topk_topp_sampler.py), and logprobs.
_SAMPLER_BYTES = 32
# CUDA context and NCCL buffers of a sleeping engine.
ASLEEP_GB = 2.0
_CPU_CACHE_BYTES = 2**30
_CPU_BLOCK_TOKENS = 128  # default block of vLLM's KV cache on CPU


PROCESS_GB = 1.0
"""CUDA context, kernels and allocator slack of a process that computes on a GPU."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder that determine its memory and FLOPs; `parse_shape` reads them from config.json."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    """Width of a dense MLP."""
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Width of a query and key head."""
    is_tied: bool
    """The output layer shares the embedding."""
    num_experts: int = 1
    """Routed experts of a layer."""
    context_length: int | None = None
    vision_parameters: int = 0
    """Parameters of the vision tower."""
    experts_per_token: int = 1
    expert_size: int = 0
    """Width of one routed expert."""
    shared_expert_size: int = 0
    """Width of all shared experts of a layer together."""
    num_dense_layers: int = 0
    """Layers of a mixture of experts with a dense MLP."""
    mlp_matrices: int = 3
    """3: gate, up and down; 2: without a gate."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    """Multi-head latent attention: width of the compressed keys and values; 0: other attention."""
    rope_head_dim: int = 0
    """Latent attention: width of the rotary key, which all heads share."""
    value_head_dim: int = 0
    """Width of a value head; 0: as `head_dim`."""
    has_query_gate: bool = False
    """The query projection also makes a gate of the attention's output."""
    sliding_window: int = 0
    num_sliding_layers: int = 0
    """Layers whose tokens attend to `sliding_window` tokens at most."""
    num_linear_layers: int = 0
    """Layers of linear attention, such as gated delta nets, in place of attention."""
    linear_parameters: int = 0
    """Parameters of one such layer without its MLP."""
    linear_state: int = 0
    """Values of a sequence's state in one such layer."""
    has_head_norm: bool = False
    """Queries and keys are normalized."""
    expert_kept_values: int = 4
    """Values per expert width that training keeps: gate, up, activated gate and product."""
    other_parameters: int = 0
    """Parameters in the model's files that are not in the formula: biases, norms, parts of other kinds."""
    architecture: str = ""
    """Class of the model, such as Qwen3ForCausalLM; empty without its config.json."""

    @property
    def value_size(self) -> int:
        return self.num_heads * (self.value_head_dim or self.head_dim)

    @property
    def num_expert_layers(self) -> int:
        return 0 if self.num_experts == 1 else self.num_layers - self.num_dense_layers

    @property
    def projections(self) -> list[tuple[int, int]]:
        """Input and output widths of the linear layers of one attention."""
        h, heads, queries = self.hidden_size, self.num_heads, self.num_heads * self.head_dim
        if not self.kv_lora_rank:
            kv = self.num_kv_heads * (2 * self.head_dim)
            return [(h, queries * (1 + self.has_query_gate)), (h, kv // 2), (h, kv // 2), (self.value_size, h)]
        rank, latent = self.q_lora_rank, self.kv_lora_rank
        query = [(h, rank), (rank, queries)] if rank else [(h, queries)]
        up = queries - heads * self.rope_head_dim + self.value_size
        return [*query, (h, latent + self.rope_head_dim), (latent, up), (self.value_size, h)]

    @property
    def attention_parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.projections)

    def padded_experts(self, num_shards: int) -> float:
        """Return the factor by which the experts' tensors grow when FSDP pads them.

        >>> shape = ModelShape(1, 4096, 8, 8, 1, 1, 8, True, num_experts=128, expert_size=1536)
        >>> shape.padded_experts(80), shape.padded_experts(256)
        (1.25, 1.0)
        """
        experts = self.num_experts
        across = not self.num_expert_layers or self.shards_across_experts(num_shards)
        return 1.0 if across else -(-experts // num_shards) * num_shards / experts

    def shards_across_experts(self, num_shards: int) -> bool:
        """Return whether FSDP shards the experts along their width, which takes a copy of a layer as it is gathered."""
        experts, width, hidden = self.num_experts, self.expert_size, self.hidden_size
        shapes = ([experts, 2 * width, hidden], [experts, hidden, width])
        return bool(self.num_expert_layers) and all(choose_shard_dim(shape, num_shards) for shape in shapes)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return self.mlp_matrices * self.hidden_size * self.expert_size

    @property
    def _mlp_parameters(self) -> int:
        return self.mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def _mixture_parameters(self) -> int:
        shared = self.mlp_matrices * self.hidden_size * self.shared_expert_size
        return self.num_experts * self.expert_parameters + self.hidden_size * self.num_experts + shared

    @property
    def layer_parameters(self) -> int:
        """Parameters of the largest layer."""
        mixer = max(self.attention_parameters, self.linear_parameters)
        mlps = [self._mixture_parameters] * bool(self.num_expert_layers) or [self._mlp_parameters]
        return mixer + max(mlps) + 2 * self.hidden_size

    def adapter_parameters(self, rank: int, *, on_experts: bool = False) -> int:
        """Return the parameters of adapters on all linear layers of all blocks, and on all joined experts if wanted."""
        h = self.hidden_size
        attention = sum(rows + columns for rows, columns in self.projections)
        dense = self.mlp_matrices * (h + self.intermediate_size)
        shared = self.mlp_matrices * (h + self.shared_expert_size) if self.shared_expert_size else 0
        mlps = (self.num_layers - self.num_expert_layers) * dense + self.num_expert_layers * shared
        joined = 2 * h + self.mlp_matrices * self.expert_size if on_experts else 0  # gates and ups have one A
        experts = self.num_expert_layers * self.num_experts * joined
        return rank * (self.num_layers * attention + mlps + experts)

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size * (1 if self.is_tied else 2)

    @property
    def largest_tensor(self) -> int:
        """Parameters of the largest tensor; the experts' gates and ups of a layer are one."""
        experts = self.num_experts * 2 * self.expert_size if self.num_expert_layers else 0
        return max(self.vocab_size, self.intermediate_size, experts) * self.hidden_size

    @property
    def num_parameters(self) -> int:
        attention = self.num_layers - self.num_linear_layers
        mixers = attention * self.attention_parameters + self.num_linear_layers * self.linear_parameters
        dense = self.num_layers - self.num_expert_layers
        mlps = dense * self._mlp_parameters + self.num_expert_layers * self._mixture_parameters
        norms = (2 * self.num_layers + 1) * self.hidden_size
        rest = self.vision_parameters + self.other_parameters
        return mixers + mlps + norms + self.embedding_parameters + rest

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        idle = (self.num_experts - self.experts_per_token) * self.expert_parameters
        return self.num_parameters - self.num_expert_layers * idle

    def cached_values(self, tokens: int, tensor_parallel_size: int = 1) -> int:
        """Return the values in the KV cache of one sequence on each GPU of an engine.

        vLLM replicates key-value heads if there are fewer than GPUs, and the latents of latent attention.
        """
        if self.kv_lora_rank:
            return self.num_layers * (self.kv_lora_rank + self.rope_head_dim) * tokens
        heads = max(1, self.num_kv_heads // tensor_parallel_size)
        full = self.num_layers - self.num_sliding_layers - self.num_linear_layers
        kept = full * tokens + self.num_sliding_layers * min(tokens, self.sliding_window)
        state = self.num_linear_layers * self.linear_state // tensor_parallel_size
        return 2 * self.head_dim * heads * kept + state

    def forward_flops(self, tokens: int) -> float:
        """Return the FLOPs per token of a forward pass over a sequence of `tokens`, with causal attention.

        2 per active parameter except the input embedding and the vision tower, and 2 per attended key and value.
        A training step takes three times as many, and four with recomputed activations.
        """
        table = 0 if self.is_tied else self.vocab_size * self.hidden_size
        width = 2 * (self.num_heads * self.head_dim + self.value_size)
        window = min(tokens, self.sliding_window)
        full = self.num_layers - self.num_sliding_layers - self.num_linear_layers
        attended = full * tokens / 2 + self.num_sliding_layers * window * (1 - window / (2 * tokens))
        state = 6 * self.num_linear_layers * self.linear_state
        return 2 * (self.active_parameters - self.vision_parameters - table) + width * attended + state


@dataclass(frozen=True)
class EngineMemory:
    """Memory of one GPU of a rollout engine, in GB."""

    weights_gb: float
    kv_sequence_gb: float
    """KV cache of one longest sequence."""
    reserve_gb: float = 2.0
    """CUDA context, CUDA graphs, and activations or sampling of one batch."""

    @property
    def awake_gb(self) -> float:
        """Memory without a KV cache, while new weights arrive."""
        return self.weights_gb + self.reserve_gb

    @property
    def least_gb(self) -> float:
        """Memory that holds a single longest sequence."""
        return self.weights_gb + self.kv_sequence_gb + self.reserve_gb

    def num_sequences(self, budget_gb: float) -> int:
        """Return how many longest sequences fit into this budget."""
        return max(0, int((budget_gb - self.weights_gb - self.reserve_gb) / self.kv_sequence_gb))


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


@dataclass(frozen=True)
class EngineLoad:
    """Settings that determine the memory of an engine's GPU; the defaults are vLLM's on a GPU of 70 GiB or more."""

    tensor_parallel_size: int
    bytes_per_value: int
    longest_tokens: int
    max_num_seqs: int = 256
    batch_tokens: int = 16384
    """Tokens of one forward pass, vLLM's `max_num_batched_tokens`."""
    has_graphs: bool = True


def estimate_engine(shape: ModelShape, load: EngineLoad) -> EngineMemory:
    """Estimate one GPU of an engine."""
    size, parts = load.bytes_per_value, load.tensor_parallel_size
    per_sequence = shape.cached_values(load.longest_tokens, parts) * size
    weights = shape.num_parameters * size / parts
    # A pass keeps the residual and a layer's input; the widest part of a layer is its MLP or its experts.
    inner = 3 * shape.intermediate_size / parts
    if shape.num_expert_layers:
        copies = shape.experts_per_token * (shape.hidden_size + 3 * shape.expert_size / parts)
        inner = max(inner * bool(shape.num_dense_layers), copies + 3 * shape.shared_expert_size / parts)
    passing = load.batch_tokens * (3 * shape.hidden_size + inner) * size
    sampling = load.max_num_seqs * shape.vocab_size * _SAMPLER_BYTES
    reserve = max(passing, sampling) / GB + PROCESS_GB + load.has_graphs * _GRAPHS_GB
    return EngineMemory(weights / GB, per_sequence / GB, reserve)


def cpu_cache_bytes(shape: ModelShape | None, *, num_sequences: int, longest_tokens: int, bytes_per_value: int) -> int:
    """Return the KV cache of an engine on CPU: `num_sequences` longest sequences, at most 1 GiB, which vLLM zero-fills.

    An unknown shape gets 1 GiB.
    """
    if shape is None:
        return _CPU_CACHE_BYTES
    blocks = -(-longest_tokens // _CPU_BLOCK_TOKENS)
    # Windows may be shorter than a block. The blocks of all layers have one size, in which a float32 state of linear
    # attention fits.
    per_token = replace(shape, num_sliding_layers=0, num_linear_layers=0).cached_values(1) * bytes_per_value
    per_block = max(_CPU_BLOCK_TOKENS * per_token, 4 * shape.num_layers * shape.linear_state)
    # vLLM reserves one block.
    return min(_CPU_CACHE_BYTES, (num_sequences * blocks + 1) * per_block)
