"""Supervised fine-tuning, reward models and DPO: rows that hold their answers, and what is learned from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from slurm_rl.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section
from slurm_rl.config.tables import DPO_LOSSES, DivergenceName, DPOLossName

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
    """Longest sequence, prompt and answer together, in tokens; see data.overlong."""
    patience: PositiveInt | None = None
    """With eval.every: stop when so many evaluations in a row bring no lower loss; null never does."""


class SFTConfig(Section):
    """Supervised fine-tuning."""

    train_on: Literal["assistant", "all"] = "assistant"
    """Tokens in the loss: what the assistant says in each of its turns, the end of the turn included; or every one."""
    neftune_alpha: NonNegativeFloat = 0.0
    """Noise on the embeddings in training (https://arxiv.org/abs/2310.05914: 5 to 15); 0 adds none."""


class RMConfig(Section):
    """Reward models."""

    centering: NonNegativeFloat = 0.0
    """Weight of (chosen score + rejected score)^2 in the loss, which keeps scores around 0, where pairs alone leave
    them anywhere; TRL's center_rewards_coefficient (https://arxiv.org/abs/2312.09244, which takes 0.01)."""


class DPOConfig(Section):
    """Direct preference optimization."""

    loss: DPOLossName = "sigmoid"
    """The loss of a pair, under TRL's name; sigmoid is DPO itself."""
    beta: PositiveFloat = 0.1
    """Weight of the distance to the reference: larger stays closer to it; IPO's tau."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of pairs taken to be labelled the wrong way round (sigmoid: cDPO; robust: 0.1), or the weight that
    exo_pair gives the rejected answer (above 0; 1e-3)."""
    discopop_tau: PositiveFloat = 0.05
    """Temperature of discopop's blend."""
    divergence: DivergenceName = "reverse_kl"
    """f-DPO (https://arxiv.org/abs/2309.16240): the distance to the reference, for losses of the difference alone."""
    divergence_alpha: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Of alpha_divergence: near 0 it is forward KL, near 1 reverse KL."""
    chosen_nll: NonNegativeFloat = 0.0
    """Weight of an additional SFT loss on the chosen answers."""
    reference: ReferenceName = "cached"
    """The policy as the run finds it: its logprobs of all rows computed once and kept in the run directory; a second
    model in memory that computes them in each step; or none (reference-free)."""

    def problems(self) -> Iterator[str]:
        row = DPO_LOSSES[self.loss]
        if self.label_smoothing > 0 and not row.smoothed:
            readers = sorted(name for name, other in DPO_LOSSES.items() if other.smoothed)
            yield (
                f"dpo.label_smoothing is for dpo.loss={', '.join(readers)}; got {self.label_smoothing} with "
                f"{self.loss!r}. Next: dpo.label_smoothing=0"
            )
        if self.label_smoothing == 0 and row.needs_smoothing:
            yield (
                f"dpo.loss={self.loss} needs dpo.label_smoothing > 0, whose logarithm it takes; got 0. "
                "Next: dpo.label_smoothing=1e-3, as the paper has it"
            )
        wanted = {"dpo.divergence": self.divergence != "reverse_kl", "dpo.reference=none": self.reference == "none"}
        for name, is_wanted in wanted.items():
            if is_wanted and DPO_LOSSES[self.loss].absolute:
                yield (
                    f"{name} adds to both answers what only their difference cancels, which dpo.loss={self.loss} does "
                    f"not take; got divergence={self.divergence!r} and reference={self.reference!r}. "
                    "Next: dpo.loss=sigmoid, or divergence=reverse_kl with a reference"
                )
        if all(wanted.values()):
            yield (
                f"dpo.divergence={self.divergence} is a distance to a reference; got dpo.reference=none. "
                "Next: dpo.reference=cached, or dpo.divergence=reverse_kl"
            )
