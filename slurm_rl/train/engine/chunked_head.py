"""The LM head over a few tokens at a time: logprobs and entropy without the logits of a whole micro-batch.

It takes the place of the head's own forward, inside the model's: whatever gathers sharded parameters
around that module still does, in the backward pass, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slurm_rl.errors import ConfigError
from slurm_rl.train.math.logprobs import compute_token_logprobs

# What some models do to the logits after the head; there the head alone does not know the logprobs.
_AFTER_THE_HEAD = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def require_plain_head(model_config: Any) -> None:
    """Refuse models that change their logits after the head.

    Raises:
        ConfigError: this one does.
    """
    found = [name for name in _AFTER_THE_HEAD if getattr(model_config, name, None) is not None]
    if found:
        raise ConfigError(
            "policy.logprob_chunk_tokens needs a model that leaves the logits as its head makes them",
            seen=f"{found[0]} in the config of model.path",
            action="set policy.logprob_chunk_tokens=null",
        )


@contextlib.contextmanager
def chunked_head(
    head: Any,
    targets: Tensor,
    temperature: float,
    chunk_tokens: int,
    *,
    entropy_gradient: bool,
    measure: Callable[..., tuple[Tensor, Tensor]] = compute_token_logprobs,
) -> Iterator[None]:
    """Let `head` map hidden states [1, N, H] to [1, N, 2]: logprob of the target, entropy; see
    `compute_token_logprobs`.

    Args:
        targets: [N] int64.
        chunk_tokens: rows of logits that exist at once.
        measure: what is told of each row of logits; see `forward_packed`.
    """

    def compute(hidden: Tensor, wanted: Tensor) -> Tensor:
        logits = torch.nn.functional.linear(hidden, head.weight, head.bias)
        return torch.stack(measure(logits, wanted, temperature, entropy_gradient=entropy_gradient), dim=-1)

    def forward(hidden: Tensor) -> Tensor:
        chunks = zip(hidden[0].split(chunk_tokens), targets.split(chunk_tokens), strict=True)
        # Nothing in it is random, so there is no random state to keep.
        parts = [checkpoint(compute, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        return torch.cat(parts).unsqueeze(0)

    former = head.__dict__.get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if former is None:
            del head.forward
        else:
            head.forward = former
