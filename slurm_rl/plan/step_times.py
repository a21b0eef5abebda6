"""Estimated times of a step, as a plan keeps them. Standard library only: the node agent reads plans."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepEstimate:
    """Estimated seconds of a step by phase."""

    seconds: dict[str, float]
    num_tokens: float
    num_gpus: int
    num_concurrent: int
    """Sequences that an engine decodes at once."""
    num_asked: int
    """Sequences that it would decode with an unlimited cache: rollout.max_num_seqs, or its share of the batch."""
    waiting_s: float = 0.0
    """Part of `sample` that a larger cache would save."""
    overlaps: bool = False
    """Sampling runs at the same time as training."""

    @property
    def total_s(self) -> float:
        sample, total = self.seconds["sample"], sum(self.seconds.values())
        return max(sample, total - sample) if self.overlaps else total

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.total_s
