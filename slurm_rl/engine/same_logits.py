"""The proof that a written model is the one it was made of: both compute the same logits on a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slurm_rl.errors import CheckpointError

TOLERANCE = 1e-5
_PROMPT_TOKENS = 32


def require_same_logits(
    model_class: Any, config: Any, source: Iterable[tuple[str, Tensor]], folder: Path, trust_remote_code: bool
) -> float:
    """Load `folder` as anybody does, and compare in float32; one model is in memory at a time.

    Args:
        source: the parameters that it should have.

    Returns:
        the largest difference.

    Raises:
        CheckpointError: it is above 1e-5.
    """
    text = config.get_text_config()
    prompt = (torch.arange(_PROMPT_TOKENS) * 7919 + 11) % text.vocab_size  # 7919 is prime: tokens from everywhere
    expected = _compute(_fill(model_class, config, source, trust_remote_code), prompt)
    written = model_class.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=trust_remote_code
    )
    difference = float((_compute(written, prompt) - expected).abs().max())
    if not difference <= TOLERANCE:
        raise CheckpointError(
            f"logits of the written model must be those of the checkpoint to {TOLERANCE:g}",
            seen=f"a difference of {difference:g} on {_PROMPT_TOKENS} tokens",
            action="report a bug; --no-check writes it all the same",
        )
    return difference


@torch.no_grad()
def _fill(model_class: Any, config: Any, source: Iterable[tuple[str, Tensor]], trust_remote_code: bool) -> Any:
    model = model_class.from_config(config, trust_remote_code=trust_remote_code).float()
    parameters = dict(model.named_parameters())
    for name, tensor in source:
        parameters[name].copy_(tensor)
    return model


@torch.no_grad()
def _compute(model: Any, prompt: Tensor) -> Tensor:
    logits: Tensor = model.eval()(input_ids=prompt.unsqueeze(0), use_cache=False).logits
    return logits
