"""The LM head over a few tokens at a time: logprobs and entropy without the logits of a whole micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slurm_rl.engine.head import apply_head, find_head, replaced_forward
from slurm_rl.math.logprobs import compute_token_logprobs

Bend = Callable[[Tensor, float], Tensor]
# What some models do to the logits after the head: by the name of the number, which stands in the config, in the model
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
    temperature: float,
    chunk_tokens: int,
    *,
    entropy_gradient: bool,
    measure: Callable[..., tuple[Tensor, Tensor]] = compute_token_logprobs,
) -> Iterator[None]:
    """Let the head of `module` map hidden states [1, N, H] to [1, N, 2]: logprob of the target, entropy; see
    `compute_token_logprobs`.

    What the model does to its logits after the head is done to them here, and not to those two. row_check.py looks
    whether that is all it does.

    Args:
        targets: [N] int64.
        chunk_tokens: rows of logits that exist at once.
        measure: what is told of each row of logits; see `forward_packed`.
    """
    head = find_head(module)
    with _without_bends(module) as bend:

        def compute(hidden: Tensor, wanted: Tensor) -> Tensor:
            logits = bend(apply_head(head, hidden))
            return torch.stack(measure(logits, wanted, temperature, entropy_gradient=entropy_gradient), dim=-1)

        def forward(hidden: Tensor) -> Tensor:
            chunks = zip(hidden[0].split(chunk_tokens), targets.split(chunk_tokens), strict=True)
            # Nothing in it is random, so there is no random state to keep.
            parts = [checkpoint(compute, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
            return torch.cat(parts).unsqueeze(0)

        with replaced_forward(head, forward):
            yield


@contextlib.contextmanager
def _without_bends(module: Any) -> Iterator[Callable[[Tensor], Tensor]]:
    """Keep the model from changing its logits, and yield what does it in its place."""
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
