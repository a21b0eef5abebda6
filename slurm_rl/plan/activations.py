"""Bytes per token that a decoder layer needs in a training step, in bfloat16.

The terms are the tensors that autograd keeps in the layers of transformers, with a flash attention, which keeps no
scores. `python -m tests.memory_table` compares the sums with the training code. Latent and linear attention are counted
by their widths and are not compared.
"""

from slurm_rl.plan.memory import ModelShape

# A norm keeps its input in float32, the normalized values and its output; a layer has two norms.
_NORMS = 16
# Norms of queries and keys keep the first two of these.
_HEAD_NORMS = 6
# Dense MLP: gate, activated gate, up, product; gradients of two of them at its backward pass.
_MLP, _MLP_AT_WORK = 8, 4
# Backward pass of experts, per token and expert: gradients of their outputs, weighted and not; of their inner values.
_EXPERT_OUTPUTS, _EXPERT_INNER = 4, 5.4
_FINAL_NORM = 24


def kept_bytes(shape: ModelShape, has_experts: bool) -> float:
    """Return the bytes that one layer keeps for its backward pass."""
    queries, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = 4.0 * queries + 4 * kv
    if shape.kv_lora_rank:
        # Compressed values with their norms; queries and keys once more, joined with their rotary parts.
        attention = 6 * queries + 4 * shape.value_size + 10 * (shape.q_lora_rank + shape.kv_lora_rank)
    if shape.has_head_norm:
        attention += _HEAD_NORMS * (queries + kv)
    if not has_experts:
        return _NORMS * shape.hidden_size + attention + _MLP * shape.intermediate_size
    # Copies of the hidden states for each chosen expert, before and after it; scores of all experts.
    chosen = shape.experts_per_token * (4 * shape.hidden_size + 2 * shape.expert_kept_values * shape.expert_size)
    experts = chosen + 8 * shape.num_experts + _MLP * shape.shared_expert_size
    return _NORMS * shape.hidden_size + attention + experts


def working_bytes(shape: ModelShape, has_experts: bool) -> float:
    """Return the temporary memory of one layer's backward pass."""
    if not has_experts:
        return shape.hidden_size + _MLP_AT_WORK * shape.intermediate_size
    width = _EXPERT_OUTPUTS * shape.hidden_size + _EXPERT_INNER * shape.expert_size
    return shape.experts_per_token * width


def layer_kinds(shape: ModelShape) -> dict[bool, int]:
    """Return the number of layers by whether they have experts."""
    counts = {True: shape.num_expert_layers, False: shape.num_layers - shape.num_expert_layers}
    return {kind: count for kind, count in counts.items() if count}


def layer_peak(shape: ModelShape, *, recomputes: bool) -> float:
    """Return the most bytes per token of one layer in its backward pass, apart from those that other layers keep."""
    return max(kept_bytes(shape, kind) * recomputes + working_bytes(shape, kind) for kind in layer_kinds(shape))


def all_kept_bytes(shape: ModelShape, *, recomputes: bool) -> float:
    """Return the bytes that all layers keep per token: with recomputation, only their inputs."""
    if recomputes:
        return 2.0 * shape.hidden_size * shape.num_layers
    return sum(count * kept_bytes(shape, kind) for kind, count in layer_kinds(shape).items())


def final_norm_bytes(shape: ModelShape) -> float:
    """Return the bytes per token of the last norm and its backward pass, after the head."""
    return _FINAL_NORM * shape.hidden_size


def input_gradient_bytes(shape: ModelShape) -> float:
    """Return the gradients per token of a layer's inputs, for each chosen expert, while its weights' are summed."""
    return 8.0 * shape.hidden_size * shape.experts_per_token
