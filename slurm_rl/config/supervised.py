"""Config of the supervised tasks: SFT, reward models and DPO."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from slurm_rl.config.registry import DPO_LOSSES, DivergenceName, DPOLossName
from slurm_rl.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section

ReferenceName = Literal["cached", "live", "none"]


class SupervisedConfig(Section):
    """Batch and length of sft, rm and dpo; optim, eval.interval, checkpoint and policy are shared with task=grpo."""

    batch_size: PositiveInt = 128
    """Rows per step over all ranks: conversations, or pairs."""
    num_epochs: PositiveInt = 1
    """Passes over the rows; an incomplete last batch of the run is dropped."""
    max_steps: PositiveInt | None = None
    """Steps at most, where the learning rate schedule ends; null: num_epochs decides."""
    max_tokens: PositiveInt = 2048
    """Longest sequence, prompt and answer together, in tokens; see data.overlong_prompts."""
    patience: PositiveInt | None = None
    """With eval.interval, stop after so many evaluations without a lower loss; null: no early stopping."""


class SFTConfig(Section):
    """Supervised fine-tuning."""

    train_on: Literal["assistant", "all"] = "assistant"
    """Tokens in the loss: assistant turns with their end-of-turn token, or all."""
    neftune_alpha: NonNegativeFloat = 0.0
    """NEFTune noise on the embeddings (https://arxiv.org/abs/2310.05914 uses 5 to 15); 0: none."""


class RMConfig(Section):
    """Reward model training."""

    center_rewards_coef: NonNegativeFloat = 0.0
    """Weight of (chosen score + rejected score)^2 in the loss, which centers scores at 0; TRL's
    center_rewards_coefficient (https://arxiv.org/abs/2312.09244 uses 0.01)."""


class DPOConfig(Section):
    """Direct preference optimization."""

    loss: DPOLossName = "sigmoid"
    """Loss of a pair, by TRL's name; sigmoid is the original DPO."""
    beta: PositiveFloat = 0.1
    """Strength of the constraint to the reference: larger stays closer; tau in IPO."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Assumed share of swapped labels (sigmoid: cDPO; robust: 0.1), or exo_pair's weight of the rejected answer (above
    0; 1e-3)."""
    discopop_tau: PositiveFloat = 0.05
    """Temperature of discopop's blend."""
    divergence: DivergenceName = "reverse_kl"
    """Divergence to the reference (f-DPO, https://arxiv.org/abs/2309.16240), for losses of the difference."""
    divergence_alpha: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Alpha of alpha_divergence: near 0 it is forward KL, near 1 reverse KL."""
    sft_coef: NonNegativeFloat = 0.0
    """Weight of an additional SFT loss on chosen answers."""
    reference: ReferenceName = "cached"
    """Source of the reference logprobs. cached: computed once with the initial policy and stored in the run directory;
    live: a frozen copy in memory; none: reference-free."""

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
                f"dpo.loss={self.loss} needs dpo.label_smoothing > 0, since it takes its logarithm; got 0. "
                "Next: dpo.label_smoothing=1e-3, as in the paper"
            )
        wanted = {"dpo.divergence": self.divergence != "reverse_kl", "dpo.reference=none": self.reference == "none"}
        for name, is_wanted in wanted.items():
            if is_wanted and row.absolute:
                yield (
                    f"{name} adds a term to both answers that cancels only in their difference, which "
                    f"dpo.loss={self.loss} does not take; got divergence={self.divergence!r} and "
                    f"reference={self.reference!r}. Next: dpo.loss=sigmoid, or divergence=reverse_kl with a reference"
                )
        if all(wanted.values()):
            yield (
                f"dpo.divergence={self.divergence} is a distance to a reference; got dpo.reference=none. "
                "Next: dpo.reference=cached, or dpo.divergence=reverse_kl"
            )
