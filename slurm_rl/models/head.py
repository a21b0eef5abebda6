"""Compute the head in float32, also in chunks that never hold the logits of all tokens.

A logit of 20 in bfloat16 is a multiple of 1/8. Products of bfloat16 numbers are exact in float32, so the weights need
no
second copy.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slurm_rl.algorithms.logprobs import Temperature, compute_token_logprobs

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

        def compute(hidden: Tensor, wanted: Tensor, heat: Temperature) -> Tensor:
            logits = bend(apply_head(head, hidden))
            return torch.stack(measure(logits, wanted, heat, entropy_gradient=entropy_gradient), dim=-1)

        def forward(hidden: Tensor) -> Tensor:
            wanted = targets.split(chunk_tokens)
            heats: Sequence[Temperature] = [temperature] * len(wanted)
            if isinstance(temperature, Tensor):
                heats = temperature.split(chunk_tokens)
            chunks = zip(hidden[0].split(chunk_tokens), wanted, heats, strict=True)
            # Nothing in it is random, so there is no random state to keep.
            parts = [checkpoint(compute, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
            return torch.cat(parts).unsqueeze(0)

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
