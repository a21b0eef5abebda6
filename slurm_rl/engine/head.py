"""The head in float32: what the last layer makes of hidden states is not rounded to the model's type.

A logit of 20 in bfloat16 is a multiple of 1/8. The products of bfloat16 numbers are exact in float32, so summing and
keeping them there costs no second copy of the weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# Rows of the weights that exist in float32 at once, where no kernel mixes the two types.
_CAST_ROWS = 8192


def find_head(module: Any) -> Any:
    """The layer that makes logits, or scores, of hidden states."""
    return module.get_output_embeddings() or module.score


@contextlib.contextmanager
def replaced_forward(head: Any, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let `forward` take the place of the head's own, inside the model's: whatever gathers sharded parameters around
    that module still does, in the backward pass, too.
    """
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
    """Let the head answer in float32."""
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
