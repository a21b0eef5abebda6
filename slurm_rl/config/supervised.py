"""Supervised fine-tuning, reward models and DPO: rows that hold their answers, and what is learned from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slurm_rl.config.base import NonNegativeFloat, PositiveFloat, PositiveInt, Section

DPOLossName = Literal["sigmoid", "ipo"]
ReferenceName = Literal["cached", "live", "none"]


class SupervisedConfig(Section):
    """What sft, rm and dpo share; optim, eval.every, checkpoint and policy are those of every task."""

    batch_size: PositiveInt = 128
    """Rows of one step over all ranks: conversations, or pairs."""
    num_epochs: PositiveInt = 1
    """Passes over the rows; the last batch of a run that is not full is left out."""
    max_steps: PositiveInt | None = None
    """Stop after so many steps; null: after num_epochs. The schedule of optim ends there."""
    max_tokens: PositiveInt = 2048
    """Longest sequence, prompt and answer together."""
    overlong: Literal["error", "leave_out"] = "error"
    """A longer row ends the run with its name, or is left out and counted in an event."""
    patience: PositiveInt | None = None
    """With eval.every: stop when so many evaluations in a row bring no lower loss; null never does."""


class SFTConfig(Section):
    """Supervised fine-tuning."""

    train_on: Literal["assistant", "all"] = "assistant"
    """Tokens in the loss: what the assistant says in each of its turns, the end of the turn included; or every one."""
    neftune_alpha: NonNegativeFloat = 0.0
    """Noise on the embeddings in training (https://arxiv.org/abs/2310.05914: 5 to 15); 0 adds none."""


class DPOConfig(Section):
    """Direct preference optimization."""

    loss: DPOLossName = "sigmoid"
    """A row of train/math/preference.py."""
    beta: PositiveFloat = 0.1
    """How dear the distance to the reference is; IPO's tau."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """cDPO: share of pairs taken to be labelled the wrong way round (sigmoid)."""
    chosen_nll: NonNegativeFloat = 0.0
    """Weight of an additional SFT loss on the chosen answers."""
    reference: ReferenceName = "cached"
    """The policy as the run finds it: its logprobs of all rows computed once and kept in the run directory; a second
    model in memory that computes them in each step; or none (reference-free)."""

    @model_validator(mode="after")
    def _smoothing_needs_the_sigmoid(self) -> DPOConfig:
        if self.label_smoothing > 0 and self.loss != "sigmoid":
            raise ValueError(
                f"dpo.label_smoothing is for dpo.loss=sigmoid; got {self.label_smoothing} with {self.loss!r}. "
                "Next: dpo.label_smoothing=0"
            )
        return self
