"""The nouns that losses, packing and the policy engine share.

Worked example: the prompt `3+4=` (tokens 5 12 6 13) and the completion `7<eos>` (tokens 9 1) make

    token_ids      5   12    6   13    9    1
    trained_from   4                              the completion starts at position 4
    logprobs                         -0.1 -0.2    one a trained token: of that token given all before it

Everything named `[N]` runs over trained tokens only; `[T]` over all tokens of a packed row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ImageSpan:
    """An image of a prompt and its placeholder tokens; the pixels are read where they are needed."""

    source: str
    """A path, or the bytes of the file as `data:;base64,...`."""
    start: int
    """Position of its first placeholder token in the prompt."""
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class TokenPrompt:
    """What a model reads of a prompt."""

    token_ids: list[int]
    """An image has as many placeholders as the model has tokens for it."""
    images: Sequence[ImageSpan] = ()


@dataclass(frozen=True, kw_only=True)
class TrainSequence:
    """One prompt with one completion, as the policy trains on it."""

    token_ids: npt.NDArray[np.int64]
    """[L] prompt tokens, then completion tokens."""
    trained_from: int
    """Position of the first trained token; 1 <= trained_from <= L. At L nothing is trained."""
    trained: npt.NDArray[np.int64] | None = None
    """[num_trained] ascending positions of the trained tokens, the first of them trained_from; None: all from there."""
    weight: float = 0.0
    """Weight of each trained token in the loss; made by `aggregation_weights` from all sequences of an optimizer step,
    so that the loss is the plain sum over tokens, micro-batches and workers."""
    advantages: FloatArray | None = None
    """[num_trained] advantage of each trained token."""
    old_logprobs: FloatArray | None = None
    """[num_trained] the denominator of the policy's ratio: logprobs under the sampler, or under the policy at the start
    of the step (proximal). None with sampler_logprobs: those of the forward pass that trains, before its step."""
    sampler_logprobs: FloatArray | None = None
    """[num_trained] logprobs under what sampled them, where that is corrected for; else None."""
    ref_logprobs: FloatArray | None = None
    """[num_trained] logprobs under the reference; None when there is no KL term."""
    old_values: FloatArray | None = None
    """[num_trained] the critic's values when the step began; None without a critic."""
    returns: FloatArray | None = None
    """[num_trained] what those values should have been."""
    temperature: float | None = None
    """Of its sampling, by which its logits are divided; None: that of the engine, for all of a row."""
    margin: float = 0.0
    """By how much a chosen answer should score above its rejected one; read by reward models alone."""
    noise_seed: int | None = None
    """Seed of the noise on this sequence's embeddings; None adds none."""
    images: Sequence[ImageSpan] = ()
    """Those of the prompt, in order."""

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """Positions of the trained tokens, [num_trained]."""
        return np.arange(self.trained_from, len(self.token_ids)) if self.trained is None else self.trained

    @property
    def num_trained(self) -> int:
        return len(self.token_ids) - self.trained_from if self.trained is None else len(self.trained)


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """Several sequences laid end to end in one row; the attention restarts where positions restart."""

    token_ids: torch.Tensor
    """[T] int64."""
    position_ids: torch.Tensor
    """[T] int64, from 0 in each sequence."""
    cu_seqlens: torch.Tensor
    """[S + 1] int32, where each sequence begins, for varlen attention."""
    trained_positions: torch.Tensor
    """[N] int64, index in the row of each trained token; its logits are one before."""
    sequence_ids: torch.Tensor
    """[N] int64 in 0..S-1, which sequence of this row each trained token belongs to."""
    weights: torch.Tensor
    """[N] float32."""
    advantages: torch.Tensor
    """[N] float32; zeros when the sequences have none."""
    old_logprobs: torch.Tensor | None
    """[N] float32."""
    sampler_logprobs: torch.Tensor | None
    """[N] float32."""
    ref_logprobs: torch.Tensor | None
    """[N] float32."""
    old_values: torch.Tensor | None = None
    """[N] float32."""
    returns: torch.Tensor | None = None
    """[N] float32."""
    temperatures: torch.Tensor | None = None
    """[N] float32, of the sampling of each trained token; None: one of all, which the engine knows."""
    shared: torch.Tensor | None = None
    """[S] int64, how many first tokens are those of the sequence before, and are read but once; None: each apart."""
    margins: torch.Tensor | None = None
    """[S] float32."""
    noise_seeds: torch.Tensor | None = None
    """[S] int64; None adds no noise."""
    rope_position_ids: torch.Tensor | None = None
    """[3, T] int64, time, height and width of each token, from 0 in each sequence; None for a text model."""
    pixel_values: torch.Tensor | None = None
    """[P, D] float32, the patches of all images, in order of the row."""
    image_grid_thw: torch.Tensor | None = None
    """[I, 3] int64, patches of each image in time, height and width."""
    image_positions: torch.Tensor | None = None
    """[I] int64, index in the row of each image's first token."""
    lone_placeholders: torch.Tensor | None = None
    """[K] int64, index in the row of each placeholder without an image: nothing keeps a model from sampling one."""

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1
