"""How a completion is scored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slurm_rl.config.base import Fraction, PositiveFloat, PositiveInt, Section

VerifierName = Literal["arithmetic", "math", "format"]


class RewardConfig(Section):
    """Verifiers, and what happens when one fails."""

    verifiers: dict[VerifierName, float] = Field(default={"arithmetic": 1.0}, min_length=1)
    """Verifier name to weight; the reward is the weighted sum."""
    num_workers: PositiveInt = 1
    """Processes that run verifiers."""
    timeout_s: PositiveFloat = 10.0
    """Deadline of one completion; a verifier that is late is ended and counted as a failure."""
    max_failure_rate: Fraction = 0.02
    """Largest share of failed rewards in one step; above it the run stops with the cause."""
