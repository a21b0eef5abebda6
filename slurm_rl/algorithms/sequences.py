"""Types shared by losses, packing and the policy engine.

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
    """Prompt as the model reads it."""

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
    """Weight of each trained token in the loss, from `aggregation_weights`."""
    advantages: FloatArray | None = None
    """[num_trained] advantage of each trained token."""
    old_logprobs: FloatArray | None = None
    """[num_trained] denominator of the policy ratio: logprobs under the sampler, or under the policy at the start of
    the step (proximal). None with sampler_logprobs: logprobs of the training pass."""
    sampler_logprobs: FloatArray | None = None
    """[num_trained] logprobs under the sampler; None without importance correction."""
    ref_logprobs: FloatArray | None = None
    """[num_trained] logprobs under the reference; None when there is no KL term."""
    old_values: FloatArray | None = None
    """[num_trained] the critic's values when the step began; None without a critic."""
    returns: FloatArray | None = None
    """[num_trained] targets of the values."""
    temperature: float | None = None
    """Sampling temperature, which divides the logits; None: that of the engine."""
    margin: float = 0.0
    """Least difference of scores between chosen and rejected answer; for reward models only."""
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
    """Several sequences in one row; the attention restarts where positions restart."""

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
    """[N] float32, sampling temperature of each trained token; None: that of the engine."""
    shared: torch.Tensor | None = None
    """[S] int64, number of first tokens shared with the previous sequence; None: no sharing."""
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
    """[K] int64, index in the row of each sampled placeholder, which has no image."""

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1
