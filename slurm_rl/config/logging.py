"""Where the numbers go besides metrics.jsonl and TensorBoard, which are always written."""

from __future__ import annotations

from typing import Literal

from slurm_rl.config.section import NonNegativeInt, Section


class WandbConfig(Section):
    """Weights & Biases. The key comes from WANDB_API_KEY or ~/.netrc, never from here."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online when a key is in the environment, else disabled."""
    project: str = "slurm_rl"
    """Project name."""
    entity: str | None = None
    """User or team; null takes the account's default."""


class LoggingConfig(Section):
    """Reporting."""

    wandb: WandbConfig = WandbConfig()
    """Weights & Biases."""
    samples_per_step: NonNegativeInt = 4
    """Completions of each step kept in samples.jsonl for the report."""
