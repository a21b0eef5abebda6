"""A prompt as vLLM takes it, and a model that sees told to vLLM as the policy sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.model import ModelConfig
from slurm_rl.data.images import open_image
from slurm_rl.data.placeholders import collapse_placeholders
from slurm_rl.errors import DataError


def build_input(prompt: TokenPrompt) -> dict[str, Any]:
    """Token ids, with the images where there are some: then with one placeholder each, which vLLM expands itself."""
    if not prompt.images:
        return {"prompt_token_ids": list(prompt.token_ids)}
    return {
        "prompt_token_ids": collapse_placeholders(prompt.token_ids, prompt.images),
        "multi_modal_data": {"image": [open_image(span.source, "a rollout batch") for span in prompt.images]},
    }


def build_options(model: ModelConfig, max_images: int) -> dict[str, Any]:
    """vLLM's arguments for a vision-language model, so that it makes the same pixels as the policy."""
    from slurm_rl.models.vision import processor_options
    from slurm_rl.rollout.vllm.images_only import allow_images_only

    allow_images_only()
    return {
        # With a limit of 0 vLLM would leave the vision tower out, and so the weights that are sent for it.
        "limit_mm_per_prompt": {"image": max(max_images, 1), "video": 0},
        "mm_processor_kwargs": processor_options(model),
    }


def check_expanded(prompts: Sequence[TokenPrompt], outputs: Sequence[Any]) -> None:
    """Compare the tokens that vLLM read with those that the policy will.

    Raises:
        DataError: it read an image as other tokens.
    """
    for prompt, output in zip(prompts, outputs, strict=True):
        if prompt.images and list(output.prompt_token_ids) != list(prompt.token_ids):
            raise DataError(
                "vLLM must read an image as the tokens that the policy has for it",
                seen=f"{len(output.prompt_token_ids)} and {len(prompt.token_ids)} tokens of a prompt with "
                f"{', '.join(span.source[:80] for span in prompt.images)}",
                action="check that the image did not change; else report a bug",
            )
