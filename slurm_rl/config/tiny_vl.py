"""The shape of a small vision-language model built from nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from slurm_rl.config.base import PositiveInt, Section


class TinyVLConfig(Section):
    """A small randomly initialised Qwen-VL with one token a byte, for tests and dry runs of an experiment."""

    family: Literal["qwen2_5_vl", "qwen3_vl"] = "qwen2_5_vl"
    """Which architecture."""
    hidden_size: PositiveInt = 64
    """Width of the residual stream; each head has hidden_size / num_heads of it."""
    num_layers: PositiveInt = 2
    """Transformer blocks of the language model."""
    num_heads: PositiveInt = 2
    """Attention heads, of the language model and of the vision tower."""
    num_kv_heads: PositiveInt = 1
    """Key-value heads; num_heads must be a multiple."""
    vision_hidden_size: PositiveInt = 32
    """Width of the vision tower; must be a multiple of 4 * num_heads."""
    vision_num_layers: PositiveInt = 2
    """Blocks of the vision tower."""
    context_length: PositiveInt = 1024
    """Longest sequence, prompt and completion together, in tokens; an image of 56 x 56 pixels is 4."""

    @model_validator(mode="after")
    def _heads_divide(self) -> TinyVLConfig:
        if self.hidden_size % (32 * self.num_heads):
            # Rotary positions of three axes share the head, and kernels want a head of a multiple of 32.
            raise ValueError(
                f"hidden_size must be a multiple of 32 * num_heads; got {self.hidden_size} and {self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.vision_hidden_size % (4 * self.num_heads):
            raise ValueError(
                "vision_hidden_size must be a multiple of 4 * num_heads; "
                f"got {self.vision_hidden_size} and {self.num_heads}"
            )
        return self
