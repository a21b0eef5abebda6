"""Compute the head in float32, also in chunks that never hold the logits of all tokens.

A logit of 20 in bfloat16 is a multiple of 1/8. Products of bfloat16 numbers are exact in float32, so the weights need
no second copy.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slurm_rl.algorithms.logprobs import Temperature, compute_token_logprobs, divide

# Rows of the weights that exist in float32 at once, where no kernel mixes the two types.
_CAST_ROWS = 8192


def find_head(module: Any) -> Any:
    return module.get_output_embeddings() or module.score


@contextlib.contextmanager
def replaced_forward(head: Any, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the head's `forward` inside the model; hooks that gather sharded parameters stay."""
    former = head.__dict__.get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if former is None:
            del head.forward
        else:
            head.forward = former


def float_head(head: Any) -> contextlib.AbstractContextManager[None]:
    return replaced_forward(head, lambda hidden: apply_head(head, hidden))


def apply_head(head: Any, hidden: Tensor) -> Tensor:
    """Hidden states [..., H] to logits or scores [..., V] float32."""
    weight, bias = head.weight, getattr(head, "bias", None)
    if hidden.dtype == torch.float32:
        return torch.nn.functional.linear(hidden, weight, bias)
    product: Tensor = _FloatProduct.apply(hidden.reshape(-1, hidden.shape[-1]), weight)
    if bias is not None:
        product = product + bias.float()
    return product.view(*hidden.shape[:-1], -1)


class _FloatProduct(torch.autograd.Function):
    """[N, H] and [V, H] of a half type to [N, V] float32; gradients in the half type, as a linear layer's are."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        if hidden.is_cuda:
            return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
        wide = hidden.float()
        return torch.cat([wide @ rows.float().t() for rows in weight.split(_CAST_ROWS)], dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        gradient = gradient.to(hidden.dtype)
        of_hidden, of_weight = ctx.needs_input_grad
        return gradient @ weight if of_hidden else None, gradient.t() @ hidden if of_weight else None


Bend = Callable[[Tensor, float], Tensor]
# Some models' changes of the logits after the head: by the name of the number, which is in the config, in the model
# or in its base; and the value of that number that does nothing.
_BENDS: dict[str, tuple[Bend, float | None]] = {
    "final_logit_softcapping": (lambda logits, cap: torch.tanh(logits / cap) * cap, None),  # Gemma
    "logit_scale": (lambda logits, scale: logits * scale, 1.0),  # Cohere
    "logits_scaling": (lambda logits, scale: logits / scale, 1.0),  # Granite
    "lm_head_multiplier": (lambda logits, scale: logits * scale, 1.0),  # Falcon-H1
}


@dataclass(frozen=True)
class _ChunkReader:
    """Computes logprobs and a second measure, and their gradients, from one chunk of logits at a time.

    Autograd over checkpointed chunks would keep several copies of a chunk and add up a weight gradient per chunk.
    """

    head: Any
    bend: Callable[[Tensor], Tensor]
    targets: Tensor
    temperature: Temperature
    chunk_tokens: int
    measure: Callable[..., tuple[Tensor, Tensor]]
    entropy_gradient: bool

    def slices(self) -> Iterator[tuple[slice, Temperature]]:
        for start in range(0, len(self.targets), self.chunk_tokens):
            rows = slice(start, start + self.chunk_tokens)
            heat = self.temperature
            yield rows, heat[rows] if isinstance(heat, Tensor) else heat

    def read(self, hidden: Tensor) -> Tensor:
        """[N, H] -> [N, 2]."""
        parts = [hidden.new_zeros(0, 2, dtype=torch.float32)]
        for rows, heat in self.slices():
            logits = self.bend(apply_head(self.head, hidden[rows]))
            measured = self.measure(logits, self.targets[rows], heat, entropy_gradient=self.entropy_gradient)
            parts.append(torch.stack(measured, dim=-1))
        return torch.cat(parts)

    def differentiate(self, hidden: Tensor, rows: slice, heat: Temperature, gradient: Tensor) -> Tensor:
        """Return the gradient [n, V] float32 of the logits of a chunk, by that of its measures [n, 2]."""
        logits = apply_head(self.head, hidden[rows])
        with torch.enable_grad():
            scaled = divide(self.bend(logits.requires_grad_()), heat)
        of_logprob, of_entropy = gradient.unsqueeze(-1).unbind(1)
        if self.entropy_gradient:
            log_p = scaled.detach().log_softmax(-1)
            p = log_p.exp()
            log_p.masked_fill_(log_p.isneginf(), 0.0)
            entropy = -(p * log_p).sum(-1, keepdim=True)
            of_scaled = p.mul_(log_p.add_(entropy).mul_(of_entropy).add_(of_logprob)).neg_()
        else:
            of_scaled = scaled.detach().softmax(-1).mul_(-of_logprob)
        of_scaled.scatter_add_(-1, self.targets[rows].unsqueeze(-1), of_logprob)
        return torch.autograd.grad(scaled, logits, of_scaled)[0]


class _ReadChunks(torch.autograd.Function):
    """`_ChunkReader.read` with a backward that computes each chunk of logits again."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, reader: _ChunkReader) -> Tensor:
        # Not the weight: a sharded one is gathered again before the backward, and is then read from the head.
        ctx.save_for_backward(hidden)
        ctx.reader = reader
        return reader.read(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        [hidden] = ctx.saved_tensors
        reader, (needs_hidden, needs_weight, needs_bias, _) = ctx.reader, ctx.needs_input_grad
        weight, is_whole = reader.head.weight, reader.chunk_tokens >= len(hidden)
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        # The sum over chunks is float32: in bfloat16 it would lose digits with each chunk.
        sum_type = weight.dtype if is_whole else torch.float32
        of_weight: Tensor | None = None
        of_bias = torch.zeros_like(weight[:, 0], dtype=torch.float32) if needs_bias else None
        for rows, heat in reader.slices():
            of_logits = reader.differentiate(hidden, rows, heat, gradient[rows])
            if of_bias is not None:
                of_bias += of_logits.sum(0)
            of_logits = of_logits.to(hidden.dtype)
            if of_hidden is not None:
                torch.mm(of_logits, weight, out=of_hidden[rows])
            if needs_weight:
                # Not before the logits of a single chunk are free.
                of_weight = torch.zeros_like(weight, dtype=sum_type) if of_weight is None else of_weight
                _add_product(of_weight, of_logits.t(), hidden[rows])
            del of_logits  # before the next chunk's logits
        if needs_weight and of_weight is None:  # no rows: other ranks wait for a gradient
            of_weight = torch.zeros_like(weight)
        found = (one if one is None else one.to(weight.dtype) for one in (of_weight, of_bias))
        return of_hidden, *found, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to `total`."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda:
        total += torch.mm(left, right, out_dtype=torch.float32)
    else:
        for part, rows in zip(total.split(_CAST_ROWS), left.split(_CAST_ROWS), strict=True):
            part.addmm_(rows.float(), right.float())


@contextlib.contextmanager
def chunked_head(
    module: Any,
    targets: Tensor,
    temperature: Temperature,
    chunk_tokens: int,
    *,
    entropy_gradient: bool,
    measure: Callable[..., tuple[Tensor, Tensor]] = compute_token_logprobs,
) -> Iterator[None]:
    """Let the head of `module` map hidden states [1, N, H] to [1, N, 2], the results of `measure`.

    The model's changes to its logits after the head are applied here; row_check.py verifies that there are no others.

    Args:
        targets: [N] int64.
        temperature: one value, or [N].
        chunk_tokens: rows of logits that exist at once.
    """
    head = find_head(module)
    with _without_bends(module) as bend:
        reader = _ChunkReader(head, bend, targets, temperature, chunk_tokens, measure, entropy_gradient)

        def forward(hidden: Tensor) -> Tensor:
            measured: Tensor = _ReadChunks.apply(hidden[0], head.weight, getattr(head, "bias", None), reader)
            return measured.unsqueeze(0)

        with replaced_forward(head, forward):
            yield


@contextlib.contextmanager
def _without_bends(module: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """Disable the model's own changes of its logits, and yield a function that applies them."""
    found = [module, getattr(module, "base_model", None), module.config, module.config.get_text_config()]
    holders = {id(holder): holder for holder in found}.values()
    values: dict[str, float] = {}
    kept: list[tuple[Any, str, float]] = []
    for holder in holders:
        for name, (_, nothing) in _BENDS.items():
            value = getattr(holder, name, None)
            if isinstance(value, int | float):
                values[name] = value
                kept.append((holder, name, value))
                setattr(holder, name, nothing)

    def bend(logits: Tensor) -> Tensor:
        for name, value in values.items():
            logits = _BENDS[name][0](logits, value)
        return logits

    try:
        yield bend
    finally:
        for holder, name, value in kept:
            setattr(holder, name, value)
