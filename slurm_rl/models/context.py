"""Context parallelism: the ranks of a group share the tokens of each packed row (Ulysses, arXiv 2309.14509).

    rank                  0          1
    most of the model     tokens 0-3, all heads     tokens 4-7, all heads
    attention             all tokens, heads 0-1     all tokens, heads 2-3

All ranks of a group get the same micro-batch and return the values of all its tokens. The loss is computed on each of
them; the gradient of the gathered values is the rank's own slice, so that their sum over ranks counts each token once.
A row is padded by a sequence of its own. Ends of sequences travel as arguments of the model, because checkpointed
blocks run again later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from slurm_rl.algorithms.sequences import PackedBatch
from slurm_rl.config.parallel import require_divisible_heads
from slurm_rl.errors import ConfigError


@dataclass(frozen=True)
class ContextGroup:
    """The ranks that share a row."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def cut(self, values: Tensor) -> Tensor:
        """Return this rank's tokens of [T, ...], padded to a multiple of the ranks: [ceil(T / size), ...]."""
        padded = pad(values, [0, 0] * (values.ndim - 1) + [0, -len(values) % self.size])
        return padded.chunk(self.size)[self.rank]

    def share(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch with this rank's tokens and positions, and the ends of all sequences and the padding."""
        padding, ends = -len(batch.token_ids) % self.size, batch.cu_seqlens
        positions = torch.cat([batch.position_ids, torch.arange(padding, device=ends.device)])
        if padding:
            ends = torch.cat([ends, ends[-1:] + padding])
        return replace(batch, token_ids=self.cut(batch.token_ids), position_ids=self.cut(positions), cu_seqlens=ends)

    def split_reads(self, read_at: Tensor, num_tokens: int) -> "OwnReads":
        """Return this rank's part of the ascending positions [N] in a row at which the head reads."""
        width = -(-num_tokens // self.size)
        counts = torch.bincount(read_at // width, minlength=self.size).tolist()
        return OwnReads(self, read_at.split(counts)[self.rank] - self.rank * width, counts)

    def to_heads(self, states: Tensor) -> Tensor:
        """Exchange [1, H, t, D] for all tokens of a share of the heads, [1, H / size, T, D].

        Fewer heads than ranks, as of keys and values, are repeated.
        """
        _, heads, tokens, width = states.shape
        if heads < self.size and self.size % heads == 0:
            states, heads = states.repeat_interleave(self.size // heads, dim=1), self.size
        parts = states.reshape(self.size, heads // self.size, tokens, width)
        exchanged: Tensor = _Exchange.apply(parts, self.group)
        return exchanged.transpose(0, 1).reshape(1, heads // self.size, self.size * tokens, width)

    def to_tokens(self, states: Tensor) -> Tensor:
        """Exchange [1, T, H / size, D] for all heads of this rank's tokens, [1, t, H, D]."""
        _, tokens, heads, width = states.shape
        parts = states.reshape(self.size, tokens // self.size, heads, width)
        exchanged: Tensor = _Exchange.apply(parts, self.group)
        return exchanged.transpose(0, 1).reshape(1, tokens // self.size, self.size * heads, width)


@dataclass(frozen=True)
class OwnReads:
    """This rank's part of the positions at which the head reads."""

    context: ContextGroup
    at: Tensor
    """[n] positions in this rank's tokens."""
    counts: list[int]
    """Positions of each rank."""

    @property
    def places(self) -> Tensor:
        """`at`, or the first token, because a rank without positions runs the head too."""
        return self.at if len(self.at) else self.at.new_zeros(1)

    def pick(self, values: Tensor) -> Tensor:
        """Return the values of [N] for `places`."""
        own = values.split(self.counts)[self.context.rank]
        return own if len(own) else values.new_ones(1)

    def gather(self, own: Tensor) -> Tensor:
        """Return the values [N, M] of all ranks, in order, from those for `places`."""
        gathered: Tensor = _GatherRows.apply(own[: len(self.at)], self.counts, self.context)
        return gathered


class _Exchange(torch.autograd.Function):
    """Send the i-th of equal parts [size, ...] to rank i; gradients take the same way back."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(gradient, ctx.group), None


class _GatherRows(torch.autograd.Function):
    """Rows [n, M] of each rank to [N, M]; the gradient is the rank's own slice."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: Sequence[int], context: ContextGroup) -> Tensor:
        ctx.counts, ctx.rank = counts, context.rank
        padded = pad(own, [0, 0, 0, max(counts) - len(own)]).contiguous()
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=context.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.split(ctx.counts)[ctx.rank], None, None


def require_context(config: Any, size: int, *, has_images: bool) -> None:
    """Raise ConfigError if a model reads images, or `size` ranks cannot share its heads."""
    if has_images:
        raise ConfigError(
            "policy.context_parallel needs a text model",
            seen=f"{config.model_type}, which reads images",
            action="set policy.context_parallel=1",
        )
    text = config.get_text_config()
    heads = text.num_attention_heads
    require_divisible_heads(size, heads, getattr(text, "num_key_value_heads", None) or heads)
