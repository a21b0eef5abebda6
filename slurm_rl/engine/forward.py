"""A packed row through a model, up to the logprobs of its trained tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slurm_rl.engine.head import chunked_head, find_head, float_head
from slurm_rl.engine.noise import noisy_embeddings
from slurm_rl.engine.row_layout import build_row_layout, build_shared_layout, mask_for
from slurm_rl.engine.vision import ImageReader
from slurm_rl.math.logprobs import compute_token_logprobs
from slurm_rl.math.packing import build_packed_batch, split_by_sequence
from slurm_rl.math.sequences import FloatArray, PackedBatch, TrainSequence

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
    packed: bool = True,
) -> tuple[Tensor, Tensor]:
    """Logprobs [N] with gradient, and entropy [N], of the trained tokens.

    Sequences stay apart because positions restart, there is no cache and no attention mask: with either,
    sdpa lets them see each other. Not every model keeps them apart; row_check.py finds out.

    Args:
        chunk_tokens: rows of logits that exist at once; None: all N.
        entropy_gradient: the entropy is differentiable, too.
        measure: what is told of the logits; `compute_token_hits` tells something else than the entropy.
        noise_alpha: strength of the noise on the embeddings of sequences with a seed.
        packed: several sequences may stand in one row.
    """
    module: Any = getattr(model, "module", model)
    targets = batch.token_ids[batch.trained_positions]
    # The logits of a token stand one before it.
    read_at = batch.trained_positions - 1
    if chunk_tokens is not None:
        chunked = chunked_head(
            module, targets, temperature, chunk_tokens, entropy_gradient=entropy_gradient, measure=measure
        )
        with chunked:
            logprobs, entropy = _forward(model, module, batch, read_at, noise_alpha, packed).unbind(-1)
        return logprobs, entropy if entropy_gradient else entropy.detach()
    with float_head(find_head(module)):
        logits = _forward(model, module, batch, read_at, noise_alpha, packed)
    return measure(logits, targets, temperature, entropy_gradient=entropy_gradient)


def forward_scores(model: Callable[..., Any], batch: PackedBatch, *, packed: bool = True) -> Tensor:
    """Scores [N] float32 of a reward model after it has read each trained token, with gradient."""
    module: Any = getattr(model, "module", model)
    with float_head(find_head(module)):
        return _forward(model, module, batch, batch.trained_positions, 0.0, packed).squeeze(-1)


def _forward(
    model: Callable[..., Any], module: Any, batch: PackedBatch, read_at: Tensor, noise_alpha: float, packed: bool
) -> Tensor:
    """What the head makes of the tokens at `read_at` [N], [N, V]."""
    walks_sequences = module.config._attn_implementation.startswith("flash")
    if walks_sequences and packed:
        return _forward_one_row(model, module, batch, read_at, noise_alpha)
    return _forward_rows(model, module, batch, read_at, noise_alpha, packed)


def _forward_one_row(
    model: Callable[..., Any], module: Any, batch: PackedBatch, read_at: Tensor, noise_alpha: float
) -> Tensor:
    """What the head makes, [N, V], from one row of all tokens.

    The varlen arguments tell flash attention where sequences end.
    """
    longest = int(batch.cu_seqlens.diff().max())
    text_positions = batch.position_ids.unsqueeze(0)
    inputs: dict[str, Any] = {
        "position_ids": text_positions,
        "cu_seq_lens_q": batch.cu_seqlens,
        "cu_seq_lens_k": batch.cu_seqlens,
        "max_length_q": longest,
        "max_length_k": longest,
    }
    places = torch.arange(len(batch.token_ids), device=batch.token_ids.device)
    if batch.rope_position_ids is not None:
        # The vision tower would take the lengths for those of its images; the positions tell them as well.
        inputs = build_vision_inputs(batch, text_positions, places)
    token_ids = batch.token_ids.unsqueeze(0)
    head, noise = _head_on(module, read_at), noisy_embeddings(module, batch, places, noise_alpha)
    with head, noise, _lone_placeholders(module, token_ids, batch, None) as ids:
        output = model(input_ids=ids, use_cache=False, **inputs)
    return output.logits[0]


def _forward_rows(
    model: Callable[..., Any], module: Any, batch: PackedBatch, read_at: Tensor, noise_alpha: float, packed: bool
) -> Tensor:
    """What the head makes, [N, V], from several short rows; of one sequence each where they are not packed."""
    lengths, device = batch.cu_seqlens.diff().tolist(), batch.token_ids.device
    if batch.shared is None:
        layout = build_row_layout(lengths, packed=packed)
    else:
        layout = build_shared_layout(lengths, batch.shared.tolist())
    places = layout.places.to(device)
    token_ids = torch.zeros(layout.num_rows * layout.width, dtype=torch.long, device=device)
    token_ids[places] = batch.token_ids
    text_positions = layout.position_ids.to(device)
    inputs: dict[str, Any] = {"position_ids": text_positions}
    if batch.rope_position_ids is not None:
        inputs = build_vision_inputs(batch, text_positions, places)
    if layout.mask is not None:
        attention, dtype = module.config._attn_implementation, getattr(module, "dtype", torch.float32)
        inputs["attention_mask"] = mask_for(layout.mask.to(device), attention, dtype)
    token_ids = token_ids.view(layout.num_rows, layout.width)
    head, noise = _head_on(module, places[read_at]), noisy_embeddings(module, batch, places, noise_alpha)
    with head, noise, _lone_placeholders(module, token_ids, batch, places) as ids:
        output = model(input_ids=ids, use_cache=False, **inputs)
    return output.logits[0]


def build_vision_inputs(batch: PackedBatch, text_positions: Tensor, places: Tensor) -> dict[str, Tensor]:
    """What a vision-language model wants beside the token ids.

    Its positions are [4, R, W]: those of the text, by which it keeps packed sequences apart, then time, height and
    width. It puts the images into the placeholders row by row, so they go in the order in which those stand there.

    Args:
        text_positions: [R, W].
        places: [T], where each token of the batch stands in the flattened [R * W].
    """
    assert batch.rope_position_ids is not None and batch.image_positions is not None
    assert batch.pixel_values is not None and batch.image_grid_thw is not None
    places = places.to(text_positions.device)
    rope = text_positions.reshape(1, -1).repeat(3, 1)
    rope[:, places] = batch.rope_position_ids
    order = places[batch.image_positions].argsort()
    images = batch.pixel_values.split(batch.image_grid_thw.prod(-1).tolist())
    return {
        "position_ids": torch.cat([text_positions.unsqueeze(0), rope.view(3, *text_positions.shape)]),
        "pixel_values": torch.cat([images[index] for index in order.tolist()]),
        "image_grid_thw": batch.image_grid_thw[order],
    }


@contextlib.contextmanager
def _lone_placeholders(module: Any, token_ids: Tensor, batch: PackedBatch, places: Tensor | None) -> Iterator[Tensor]:
    """Token ids [R, W] in which a vision-language model finds the placeholders of its images alone.

    One that was sampled is read as the token that it is, as vLLM does: the embedding still gets it.
    """
    lone = batch.lone_placeholders
    if lone is None or len(lone) == 0:
        yield token_ids
        return
    shown = token_ids.clone()
    shown.view(-1)[lone if places is None else places[lone]] = 0
    embedding = module.get_input_embeddings()
    handle = embedding.register_forward_pre_hook(lambda _, arguments: (token_ids, *arguments[1:]), prepend=True)
    try:
        yield shown
    finally:
        handle.remove()


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
    images: ImageReader | None = None,
    share_prompts: bool = False,
    packed: bool = True,
) -> list[FloatArray]:
    """Logprobs of each sequence, each [num_trained] float32; of none, [] after a dummy run.

    Args:
        images: reads those of a vision-language model; None for a text model.
        packed: as row_check.py found.
    """
    batch = build_batch(sequences or [DUMMY], images, device, share_prompts=share_prompts)
    logprobs, _ = forward_packed(model, batch, temperature, chunk_tokens=chunk_tokens, packed=packed)
    return split_by_sequence(logprobs, batch.sequence_ids, len(sequences)) if sequences else []


@torch.no_grad()
def compute_sequence_scores(
    model: Callable[..., Any],
    sequences: Sequence[TrainSequence],
    device: torch.device,
    *,
    images: ImageReader | None = None,
    share_prompts: bool = False,
    packed: bool = True,
) -> list[FloatArray]:
    """Scores of each sequence, each [num_trained] float32; of none, [] after a dummy run."""
    batch = build_batch(sequences or [DUMMY], images, device, share_prompts=share_prompts)
    scores = forward_scores(model, batch, packed=packed)
    return split_by_sequence(scores, batch.sequence_ids, len(sequences)) if sequences else []


def build_batch(
    sequences: Sequence[TrainSequence],
    images: ImageReader | None,
    device: torch.device,
    *,
    share_prompts: bool = False,
) -> PackedBatch:
    """The packed row of these sequences, with its pixels, on the device."""
    if images is None:
        return move_batch(build_packed_batch(sequences, share_prompts=share_prompts), device)
    sequences = images.with_image(sequences)
    return move_batch(images.attach(build_packed_batch(sequences), sequences), device)


def move_batch(batch: PackedBatch, device: torch.device) -> PackedBatch:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{name: v.to(device) for name, v in values.items() if v is not None})
