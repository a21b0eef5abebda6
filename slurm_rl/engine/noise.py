"""NEFTune: uniform noise on the embeddings in training, https://arxiv.org/abs/2310.05914, algorithm 1."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from slurm_rl.math.sequences import PackedBatch


def noisy_embeddings(
    module: Any, batch: PackedBatch, places: Tensor, alpha: float
) -> contextlib.AbstractContextManager[Any]:
    """Add the noise of each sequence to what the input embeddings make; none for `alpha` 0 or without seeds.

    Args:
        places: [T] where each packed token stands in the flattened rows the model reads.
    """
    if alpha == 0 or batch.noise_seeds is None:
        return contextlib.nullcontext()

    def add(_: Any, __: Any, embedded: Tensor) -> Tensor:
        noise = build_noise(batch, embedded.shape[-1], alpha).to(embedded)
        flat = embedded.reshape(-1, embedded.shape[-1])
        return flat.index_add(0, places, noise).view_as(embedded)

    handle: RemovableHandle = module.get_input_embeddings().register_forward_hook(add)
    return handle


def build_noise(batch: PackedBatch, width: int, alpha: float) -> Tensor:
    """Noise [T, width], uniform in +- alpha / sqrt(length * width) with the length of each sequence.

    Drawn on CPU from each sequence's own seed, so that it is the same however sequences are packed and dealt.
    """
    assert batch.noise_seeds is not None
    parts = []
    for seed, length in zip(batch.noise_seeds.tolist(), batch.cu_seqlens.diff().tolist(), strict=True):
        generator = torch.Generator().manual_seed(seed)
        bound = alpha / math.sqrt(length * width)
        parts.append((torch.rand(length, width, generator=generator) * 2 - 1) * bound)
    return torch.cat(parts)
