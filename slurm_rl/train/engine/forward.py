"""A packed row through a model, up to the logprobs of its trained tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.train.engine.chunked_head import chunked_head
from slurm_rl.train.engine.noise import noisy_embeddings
from slurm_rl.train.engine.rows import build_row_layout
from slurm_rl.train.math.logprobs import compute_token_logprobs
from slurm_rl.train.math.packing import build_packed_batch, split_by_sequence
from slurm_rl.train.types import FloatArray, PackedBatch, TrainSequence

Measure = Callable[..., tuple[Tensor, Tensor]]
"""Logits [N, V], targets [N], temperature, entropy_gradient -> logprobs [N] and something else [N]."""

# What a worker without work computes, so that its collectives still match the others'.
DUMMY = TrainSequence(token_ids=np.zeros(2, dtype=np.int64), trained_from=1)


def forward_packed(
    model: Callable[..., Any],
    batch: PackedBatch,
    temperature: float,
    *,
    chunk_tokens: int | None = None,
    entropy_gradient: bool = False,
    measure: Measure = compute_token_logprobs,
    noise_alpha: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Logprobs [N] with gradient, and entropy [N], of the trained tokens.

    Sequences stay apart because positions restart, there is no cache and no attention mask: with either,
    sdpa lets them see each other.

    Args:
        chunk_tokens: rows of logits that exist at once; None: all N.
        entropy_gradient: the entropy is differentiable, too.
        measure: what is told of the logits; `compute_token_hits` tells something else than the entropy.
        noise_alpha: strength of the noise on the embeddings of sequences with a seed.
    """
    module: Any = getattr(model, "module", model)
    targets = batch.token_ids[batch.trained_positions]
    # The logits of a token stand one before it.
    read_at = batch.trained_positions - 1
    if chunk_tokens is not None:
        head = find_head(module)
        with chunked_head(head, targets, temperature, chunk_tokens, entropy_gradient=entropy_gradient, measure=measure):
            logprobs, entropy = _forward(model, module, batch, read_at, noise_alpha).unbind(-1)
        return logprobs, entropy if entropy_gradient else entropy.detach()
    logits = _forward(model, module, batch, read_at, noise_alpha)
    return measure(logits, targets, temperature, entropy_gradient=entropy_gradient)


def forward_scores(model: Callable[..., Any], batch: PackedBatch) -> Tensor:
    """Scores [N] float32 of a reward model after it has read each trained token, with gradient."""
    module: Any = getattr(model, "module", model)
    return _forward(model, module, batch, batch.trained_positions, 0.0).squeeze(-1).float()


def find_head(module: Any) -> Any:
    """The layer that makes logits, or scores, of hidden states."""
    return module.get_output_embeddings() or module.score


def _forward(model: Callable[..., Any], module: Any, batch: PackedBatch, read_at: Tensor, noise_alpha: float) -> Tensor:
    """What the head makes of the tokens at `read_at` [N], [N, V]."""
    walks_sequences = module.config._attn_implementation.startswith("flash")
    forward = _forward_one_row if walks_sequences else _forward_rows
    return forward(model, module, batch, read_at, noise_alpha)


def _forward_one_row(
    model: Callable[..., Any], module: Any, batch: PackedBatch, read_at: Tensor, noise_alpha: float
) -> Tensor:
    """What the head makes, [N, V], from one row of all tokens.

    The varlen arguments tell flash attention where sequences end.
    """
    longest = int(batch.cu_seqlens.diff().max())
    places = torch.arange(len(batch.token_ids), device=batch.token_ids.device)
    with _head_on(module, read_at), noisy_embeddings(module, batch, places, noise_alpha):
        output = model(
            input_ids=batch.token_ids.unsqueeze(0),
            position_ids=batch.position_ids.unsqueeze(0),
            use_cache=False,
            cu_seq_lens_q=batch.cu_seqlens,
            cu_seq_lens_k=batch.cu_seqlens,
            max_length_q=longest,
            max_length_k=longest,
        )
    return output.logits[0]


def _forward_rows(
    model: Callable[..., Any], module: Any, batch: PackedBatch, read_at: Tensor, noise_alpha: float
) -> Tensor:
    """What the head makes, [N, V], from several short rows."""
    layout = build_row_layout(batch.cu_seqlens.diff().tolist())
    device = batch.token_ids.device
    places = layout.places.to(device)
    token_ids = torch.zeros(layout.num_rows * layout.width, dtype=torch.long, device=device)
    token_ids[places] = batch.token_ids
    with _head_on(module, places[read_at]), noisy_embeddings(module, batch, places, noise_alpha):
        output = model(
            input_ids=token_ids.view(layout.num_rows, layout.width),
            position_ids=layout.position_ids.to(device),
            use_cache=False,
        )
    return output.logits[0]


@contextlib.contextmanager
def _head_on(module: Any, places: Tensor) -> Iterator[None]:
    """Let the head see only these places of the flattened hidden states.

    On prompts it would cost a vocabulary row a token for nothing, and logits_to_keep can only choose the
    same columns of every row.
    """

    def choose(_: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = arguments[0]
        return (hidden.reshape(-1, hidden.shape[-1])[places].unsqueeze(0), *arguments[1:])

    handle = find_head(module).register_forward_pre_hook(choose, prepend=True)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def compute_sequence_logprobs(
    model: Callable[..., Any],
    sequences: Sequence[TrainSequence],
    temperature: float,
    device: torch.device,
    *,
    chunk_tokens: int | None = None,
) -> list[FloatArray]:
    """Logprobs of each sequence, each [num_trained] float32; of none, [] after a dummy run."""
    batch = move_batch(build_packed_batch(sequences or [DUMMY]), device)
    logprobs, _ = forward_packed(model, batch, temperature, chunk_tokens=chunk_tokens)
    return split_by_sequence(logprobs, batch.sequence_ids, len(sequences)) if sequences else []


@torch.no_grad()
def compute_sequence_scores(
    model: Callable[..., Any], sequences: Sequence[TrainSequence], device: torch.device
) -> list[FloatArray]:
    """Scores of each sequence, each [num_trained] float32; of none, [] after a dummy run."""
    batch = move_batch(build_packed_batch(sequences or [DUMMY]), device)
    scores = forward_scores(model, batch)
    return split_by_sequence(scores, batch.sequence_ids, len(sequences)) if sequences else []


def move_batch(batch: PackedBatch, device: torch.device) -> PackedBatch:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{name: v.to(device) for name, v in values.items() if v is not None})
