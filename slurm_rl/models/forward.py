"""Run a packed row through a model, up to the logprobs of its trained tokens."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from slurm_rl.algorithms.logprobs import compute_token_logprobs
from slurm_rl.algorithms.packing import build_packed_batch, split_by_sequence
from slurm_rl.algorithms.sequences import FloatArray, PackedBatch, TrainSequence
from slurm_rl.models.attention import VARLEN, PackedSequences
from slurm_rl.models.head import chunked_head, find_head, float_head
from slurm_rl.models.row_layout import build_row_layout, build_shared_layout, mask_for
from slurm_rl.models.vision import ImageReader

if TYPE_CHECKING:
    from slurm_rl.models.context import ContextGroup

Measure = Callable[..., tuple[Tensor, Tensor]]
"""Logits [N, V], targets [N], temperature, entropy_gradient -> logprobs [N] and a second measure [N]."""

# Input of a worker without work, so that its collectives match the others'.
DUMMY = TrainSequence(token_ids=np.zeros(2, dtype=np.int64), trained_from=1)


@dataclass(frozen=True)
class RowReader:
    """A model, and the layout of the rows that it reads."""

    model: Callable[..., Any]
    device: torch.device
    images: ImageReader | None = None
    """Image reader of a vision-language model; None for a text model."""
    chunk_tokens: int | None = None
    """Rows of logits that exist at once; None: all."""
    prefix_sharing: bool = False
    packed: bool = True
    """Whether several sequences may share one row (row_check.py)."""
    context: "ContextGroup | None" = None
    """Ranks that share the tokens of each row and return the same values; None: this rank has all tokens."""

    @property
    def module(self) -> Any:
        return getattr(self.model, "module", self.model)

    def build_batch(self, sequences: Sequence[TrainSequence]) -> PackedBatch:
        """Return the packed row of these sequences, with its pixels, on the device."""
        if self.images is None:
            return move_batch(build_packed_batch(sequences, prefix_sharing=self.prefix_sharing), self.device)
        sequences = self.images.with_image(sequences)
        return move_batch(self.images.attach(build_packed_batch(sequences), sequences), self.device)

    def forward(
        self,
        batch: PackedBatch,
        temperature: float,
        *,
        entropy_gradient: bool = False,
        measure: Measure = compute_token_logprobs,
        noise_alpha: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Return logprobs [N] with gradient, and entropy [N], of the trained tokens.

        Sequences stay apart because positions restart and there is no cache and no mask; row_check.py verifies it.

        Args:
            temperature: default for sequences without their own.
            entropy_gradient: the entropy is differentiable, too.
            measure: function of the logits; `compute_token_hits` replaces the entropy.
            noise_alpha: strength of the noise on the embeddings of sequences with a seed.
        """
        heat = temperature if batch.temperatures is None else batch.temperatures
        targets = batch.token_ids[batch.trained_positions]
        # The logits of a token are at the position before it.
        read_at = batch.trained_positions - 1
        own = None if self.context is None else self.context.split_reads(read_at, len(batch.token_ids))
        if own is not None:
            heat = own.pick(heat) if isinstance(heat, Tensor) else heat
            read_at, targets = own.places, own.pick(targets)
        if self.chunk_tokens is not None:
            chunked = chunked_head(
                self.module, targets, heat, self.chunk_tokens, entropy_gradient=entropy_gradient, measure=measure
            )
            with chunked:
                found = self._read(batch, read_at, noise_alpha)
        else:
            with float_head(find_head(self.module)):
                logits = self._read(batch, read_at, noise_alpha)
            found = torch.stack(measure(logits, targets, heat, entropy_gradient=entropy_gradient), dim=-1)
        logprobs, entropy = (found if own is None else own.gather(found)).unbind(-1)
        return logprobs, entropy if entropy_gradient else entropy.detach()

    def forward_scores(self, batch: PackedBatch) -> Tensor:
        """Return a reward model's scores [N] float32 after each trained token, with gradient."""
        read_at = batch.trained_positions
        own = None if self.context is None else self.context.split_reads(read_at, len(batch.token_ids))
        with float_head(find_head(self.module)):
            scores = self._read(batch, read_at if own is None else own.places, 0.0)
        return (scores if own is None else own.gather(scores)).squeeze(-1)

    @torch.no_grad()
    def compute_logprobs(self, sequences: Sequence[TrainSequence], temperature: float) -> list[FloatArray]:
        """Return the logprobs of each sequence, [num_trained] float32; [] after a dummy run without sequences."""
        batch = self.build_batch(sequences or [DUMMY])
        logprobs, _ = self.forward(batch, temperature)
        return split_by_sequence(logprobs, batch.sequence_ids, len(sequences)) if sequences else []

    @torch.no_grad()
    def compute_scores(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the scores of each sequence, [num_trained] float32; [] after a dummy run without sequences."""
        batch = self.build_batch(sequences or [DUMMY])
        scores = self.forward_scores(batch)
        return split_by_sequence(scores, batch.sequence_ids, len(sequences)) if sequences else []

    def _read(self, batch: PackedBatch, read_at: Tensor, noise_alpha: float) -> Tensor:
        """Return the head's output [N, V] at `read_at` [N]."""
        module, whole = self.module, batch
        attention = module.config._attn_implementation
        if self.context is not None:
            batch = self.context.share(whole)
        if self.packed and batch.shared is None and attention.startswith((VARLEN, "flash")):
            positions, places, more = _lay_in_one_row(batch, attention, self.context)
        else:
            positions, places, more = _lay_in_rows(module, batch, self.packed)
        token_ids = torch.zeros_like(positions)
        token_ids.view(-1)[places] = batch.token_ids
        inputs = {"position_ids": positions}
        if batch.rope_position_ids is not None:
            inputs = build_vision_inputs(batch, positions, places)
        head, noise = (
            _head_on(module, places[read_at]),
            noisy_embeddings(module, whole, places, noise_alpha, self.context),
        )
        with head, noise, _lone_placeholders(module, token_ids, batch, places) as ids:
            output = self.model(input_ids=ids, use_cache=False, **inputs, **more)
        logits: Tensor = output.logits[0]
        return logits


_Laid = tuple[Tensor, Tensor, dict[str, Any]]
"""Positions [R, W], index of each token in the flattened [R * W] [T], more arguments of the model."""


def _lay_in_one_row(batch: PackedBatch, attention: str, context: "ContextGroup | None") -> _Laid:
    """Lay all tokens of this rank into one row; further arguments tell the attention where sequences end."""
    positions, places = (
        batch.position_ids.unsqueeze(0),
        torch.arange(len(batch.token_ids), device=batch.token_ids.device),
    )
    if attention == VARLEN:
        sequences = PackedSequences(batch.cu_seqlens.diff().tolist(), batch.cu_seqlens, context)
        return positions, places, {"packed_sequences": sequences}
    if batch.rope_position_ids is not None:
        # The vision tower would take the lengths for those of its images; the positions tell them as well.
        return positions, places, {}
    longest = int(batch.cu_seqlens.diff().max())
    ends = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), batch.cu_seqlens)
    return positions, places, {**ends, "max_length_q": longest, "max_length_k": longest}


def _lay_in_rows(module: Any, batch: PackedBatch, packed: bool) -> _Laid:
    """Lay sequences into several short rows, one each if they are not packed."""
    lengths, device = batch.cu_seqlens.diff().tolist(), batch.token_ids.device
    if batch.shared is None:
        layout = build_row_layout(lengths, packed=packed)
    else:
        layout = build_shared_layout(lengths, batch.shared.tolist())
    more = {}
    if layout.mask is not None:
        attention, dtype = module.config._attn_implementation, getattr(module, "dtype", torch.float32)
        more["attention_mask"] = mask_for(layout.mask.to(device), attention, dtype)
    return layout.position_ids.to(device), layout.places.to(device), more


def build_vision_inputs(batch: PackedBatch, text_positions: Tensor, places: Tensor) -> dict[str, Tensor]:
    """Return a vision-language model's inputs besides the token ids.

    Positions are [4, R, W]: text, time, height, width. Images are in the order of their placeholders in the rows.

    Args:
        text_positions: [R, W].
        places: [T], index of each token of the batch in the flattened [R * W].
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
def _lone_placeholders(module: Any, token_ids: Tensor, batch: PackedBatch, places: Tensor) -> Iterator[Tensor]:
    """Hide sampled placeholder tokens from the model: only the embedding reads them, as in vLLM."""
    lone = batch.lone_placeholders
    if lone is None or len(lone) == 0:
        yield token_ids
        return
    shown = token_ids.clone()
    shown.view(-1)[places[lone]] = 0
    embedding = module.get_input_embeddings()
    with embedding.register_forward_pre_hook(lambda _, arguments: (token_ids, *arguments[1:]), prepend=True):
        yield shown


def _head_on(module: Any, places: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Restrict the head to these places of the flattened hidden states, until the handle is left."""

    def choose(_: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = arguments[0]
        return (hidden.reshape(-1, hidden.shape[-1])[places].unsqueeze(0), *arguments[1:])

    handle: RemovableHandle = find_head(module).register_forward_pre_hook(choose, prepend=True)
    return handle


def noisy_embeddings(
    module: Any, batch: PackedBatch, places: Tensor, alpha: float, context: "ContextGroup | None" = None
) -> contextlib.AbstractContextManager[Any]:
    """NEFTune: uniform noise on the embeddings in training, https://arxiv.org/abs/2310.05914, algorithm 1.

    There is none for `alpha` 0 or for sequences without seeds.
    """
    if alpha == 0 or batch.noise_seeds is None:
        return contextlib.nullcontext()

    def add(_: Any, __: Any, embedded: Tensor) -> Tensor:
        noise = build_noise(batch, embedded.shape[-1], alpha).to(embedded)
        noise = noise if context is None else context.cut(noise)
        flat = embedded.reshape(-1, embedded.shape[-1])
        return flat.index_add(0, places, noise).view_as(embedded)

    handle: RemovableHandle = module.get_input_embeddings().register_forward_hook(add)
    return handle


def build_noise(batch: PackedBatch, width: int, alpha: float) -> Tensor:
    """Return noise [T, width], uniform in +- alpha / sqrt(length * width), drawn from each sequence's own seed."""
    assert batch.noise_seeds is not None
    parts = []
    for seed, length in zip(batch.noise_seeds.tolist(), batch.cu_seqlens.diff().tolist(), strict=True):
        generator = torch.Generator().manual_seed(seed)
        bound = alpha / math.sqrt(length * width)
        parts.append((torch.rand(length, width, generator=generator) * 2 - 1) * bound)
    return torch.cat(parts)


def move_batch(batch: PackedBatch, device: torch.device) -> PackedBatch:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return replace(batch, **{name: v.to(device) for name, v in values.items() if v is not None})
