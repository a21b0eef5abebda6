"""Prompts and vision models in vLLM's form."""

from collections.abc import Sequence
from typing import Any

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.config.model import ModelConfig
from slurm_rl.data.images import open_image
from slurm_rl.data.placeholders import collapse_placeholders
from slurm_rl.errors import DataError


def build_input(prompt: TokenPrompt) -> dict[str, Any]:
    """Return token ids and images; each image has one placeholder token, which vLLM expands."""
    if not prompt.images:
        return {"prompt_token_ids": list(prompt.token_ids)}
    return {
        "prompt_token_ids": collapse_placeholders(prompt.token_ids, prompt.images),
        "multi_modal_data": {"image": [open_image(span.source, "a rollout batch") for span in prompt.images]},
    }


def build_options(model: ModelConfig, max_images: int) -> dict[str, Any]:
    """Return vLLM's arguments for a vision-language model that make its pixels equal the policy's."""
    from slurm_rl.models.vision import processor_options
    from slurm_rl.rollout.vllm.images_only import allow_images_only

    allow_images_only()
    return {
        # With a limit of 0 vLLM would not load the vision tower, but the policy sends its weights.
        "limit_mm_per_prompt": {"image": max(max_images, 1), "video": 0},
        "mm_processor_kwargs": processor_options(model),
    }


def check_expanded(prompts: Sequence[TokenPrompt], outputs: Sequence[Any]) -> None:
    """Check that vLLM expanded images to the policy's tokens.

    Raises:
        DataError: the tokens differ.
    """
    for prompt, output in zip(prompts, outputs, strict=True):
        if prompt.images and list(output.prompt_token_ids) != list(prompt.token_ids):
            raise DataError(
                "vLLM and the policy must use the same tokens for an image",
                seen=f"{len(output.prompt_token_ids)} and {len(prompt.token_ids)} tokens of a prompt with "
                f"{', '.join(span.source[:80] for span in prompt.images)}",
                action="check that the image did not change; else report a bug",
            )
