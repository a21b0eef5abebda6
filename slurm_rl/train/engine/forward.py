"""A packed row through a model, up to the logprobs of its trained tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.train.math.logprobs import compute_token_logprobs
from slurm_rl.train.math.packing import build_packed_batch, split_by_sequence
from slurm_rl.train.types import FloatArray, PackedBatch, TrainSequence

# What a worker without work computes, so that its collectives still match the others'.
DUMMY = TrainSequence(token_ids=np.zeros(2, dtype=np.int64), trained_from=1)


def forward_packed(model: Callable[..., Any], batch: PackedBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Logprobs [N] with gradient, and entropy [N] without, of the trained tokens.

    Sequences stay apart because positions restart, there is no cache and no attention mask: with either,
    sdpa lets them see each other. The varlen arguments are what flash attention reads instead.
    The LM head runs on N positions, not T: on prompts it would cost a vocabulary row a token for nothing.
    """
    longest = int(batch.cu_seqlens.diff().max())
    output = model(
        input_ids=batch.token_ids.unsqueeze(0),
        position_ids=batch.position_ids.unsqueeze(0),
        use_cache=False,
        logits_to_keep=batch.trained_positions - 1,
        cu_seq_lens_q=batch.cu_seqlens,
        cu_seq_lens_k=batch.cu_seqlens,
        max_length_q=longest,
        max_length_k=longest,
    )
    targets = batch.token_ids[batch.trained_positions]
    return compute_token_logprobs(output.logits[0], targets, temperature)


@torch.no_grad()
def compute_sequence_logprobs(
    model: Callable[..., Any], sequences: Sequence[TrainSequence], temperature: float, device: torch.device
) -> list[FloatArray]:
    """Logprobs of each sequence, each [num_trained] float32; of none, [] after a dummy run."""
    batch = move_batch(build_packed_batch(sequences or [DUMMY]), device)
    logprobs, _ = forward_packed(model, batch, temperature)
    return split_by_sequence(logprobs, batch.sequence_ids, len(sequences)) if sequences else []


def move_batch(batch: PackedBatch, device: torch.device) -> PackedBatch:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{name: v.to(device) for name, v in values.items() if v is not None})
