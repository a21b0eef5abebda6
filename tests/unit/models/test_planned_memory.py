"""Compare planned memory with tensor sizes of the training code, without a GPU."""

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.models.forward import RowReader
from slurm_rl.plan.parse_shape import parse_shape
from slurm_rl.plan.policy_memory import estimate_policy
from slurm_rl.plan.training_states import PolicyLoad
from tests.live_bytes import LiveBytes


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("rows", [None, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_memory_matches_plan(dtype: str, rows: int | None, entropy_gradient: bool) -> None:
    """A model that is mostly vocabulary: the logits dominate its peak, within 15 %."""
    tokens, vocab = 256, 20_000
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).to(getattr(torch, dtype)).train()
    sequence = TrainSequence(token_ids=np.arange(tokens + 1), trained_from=1)
    reader = RowReader(model, torch.device("cpu"), chunk_tokens=rows)
    batch = reader.build_batch([sequence])
    with LiveBytes() as bytes_:
        logprobs, entropy = reader.forward(batch, 0.9, entropy_gradient=entropy_gradient)
        (logprobs.sum() + (entropy.sum() if entropy_gradient else 0.0)).backward()
    load = PolicyLoad("fsdp2", 2, 1, 4, False, tokens, logit_rows=rows, entropy_gradient=entropy_gradient)
    shape = parse_shape(config.to_dict())
    assert shape is not None
    # The gradient of the tied embedding is live in the step: once, or twice during the addition.
    gradient = vocab * 32 * model.lm_head.weight.element_size() / 1e9
    wanted = estimate_policy(shape, load).logits_gb
    assert wanted * 0.85 <= bytes_.peak / 1e9 - gradient <= wanted * 1.15
