"""The learning rule: advantages, loss, KL."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slurm_rl.config.base import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section

AdvantageName = Literal["group_norm", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"]
LossName = Literal["grpo", "gspo", "gspo_token", "cispo"]
AggregationName = Literal["token-mean", "sequence-mean", "sequence-mean-token-mean"]
CorrectionName = Literal["none", "token_tis", "sequence_mask", "icepop"]


class KLConfig(Section):
    """Distance to the frozen reference policy."""

    coefficient: NonNegativeFloat = 0.0
    """Weight of the KL term; at 0 no reference model is loaded."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman's estimators (http://joschu.net/blog/kl-approx.html)."""
    where: Literal["loss", "reward"] = "loss"
    """Add it to the loss, or take it from the reward before the advantage."""


class OverlongConfig(Section):
    """Soft punishment of length (DAPO, https://arxiv.org/abs/2503.14476, eq. 13)."""

    share: Fraction = 0.0
    """The last share of rollout.max_tokens, over which the punishment grows from 0 to `penalty`; 0: none."""
    penalty: PositiveFloat = 1.0
    """Taken from the reward of a completion that the length limit cut."""


class FilterConfig(Section):
    """Completions left out of the loss and of its mean; they still count in their group's baseline."""

    zero_variance: bool = False
    """Leave out groups whose rewards are all equal."""
    truncated: bool = False
    """Leave out completions that the length limit cut."""
    min_tokens: NonNegativeInt = 0
    """Leave out shorter completions."""
    max_tokens: PositiveInt | None = None
    """Leave out longer completions; null: none."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> FilterConfig:
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(
                "algorithm.filters.max_tokens must be >= algorithm.filters.min_tokens, or nothing is left; "
                f"got {self.max_tokens} < {self.min_tokens}. Next: raise max_tokens, or lower min_tokens"
            )
        return self


class CorrectionConfig(Section):
    """Importance weights `policy / sampler` for tokens on which the two programs disagree."""

    kind: CorrectionName = "none"
    """none, or a row of the table in train/math/correction.py."""
    low: NonNegativeFloat = 0.5
    """sequence_mask, icepop: smaller weights become 0."""
    high: PositiveFloat = 2.0
    """token_tis: larger weights are cut to this; sequence_mask, icepop: larger weights become 0."""

    @model_validator(mode="after")
    def _weight_one_is_inside(self) -> CorrectionConfig:
        if not self.low <= 1 <= self.high:
            raise ValueError(
                "algorithm.correction.low must be <= 1 and algorithm.correction.high >= 1, or equal programs would be "
                f"corrected; got {self.low} and {self.high}. Next: algorithm.correction.low=0.5 "
                "algorithm.correction.high=2"
            )
        return self


class AlgorithmConfig(Section):
    """One row each of the tables in train/math."""

    advantage: AdvantageName = "group_norm"
    """How rewards of a group become advantages."""
    loss: LossName = "grpo"
    """The policy loss of one token."""
    aggregation: AggregationName = "token-mean"
    """How token losses become one number."""
    aggregation_length: PositiveInt | None = None
    """For sequence-mean: divide each sequence's sum by this constant (Dr. GRPO: rollout.max_tokens)."""
    group_size: Annotated[int, Field(ge=1)] = 8
    """Completions sampled for each prompt."""
    clip_low: PositiveFloat = 0.2
    """The ratio is clipped at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped at 1 + clip_high (DAPO's clip-higher: 0.28)."""
    kl: KLConfig = KLConfig()
    """Distance to the reference."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Weight of the policy's entropy, which the loss then raises."""
    overlong: OverlongConfig = OverlongConfig()
    """Punishment of length."""
    filters: FilterConfig = FilterConfig()
    """What the loss leaves out."""
    dynamic_sampling_rounds: PositiveInt = 1
    """Sample new prompts until the batch is full of groups with unequal rewards, at most so often (DAPO); at the
    bound, groups of equal rewards fill it. 1: take what comes."""
    old_logprobs: Literal["rollout", "policy"] = "rollout"
    """Denominator of the ratio: what the sampler said, or what the policy says before the step's first update."""
    correction: CorrectionConfig = CorrectionConfig()
    """Importance correction between sampler and policy; needs old_logprobs=policy."""

    @model_validator(mode="after")
    def _group_needs_two(self) -> AlgorithmConfig:
        if self.group_size < 2 and self.advantage != "reinforce_pp":
            raise ValueError(
                f"algorithm.group_size must be >= 2 for advantage {self.advantage!r}, which compares the "
                f"completions of one prompt; got {self.group_size}. Next: set algorithm.group_size=8, "
                "or algorithm.advantage=reinforce_pp"
            )
        return self

    @model_validator(mode="after")
    def _correction_needs_two_logprobs(self) -> AlgorithmConfig:
        if self.correction.kind != "none" and self.old_logprobs != "policy":
            raise ValueError(
                "algorithm.correction.kind needs algorithm.old_logprobs=policy, since a ratio to the sampler's "
                f"logprobs is corrected already; got {self.correction.kind!r} with old_logprobs="
                f"{self.old_logprobs!r}. Next: algorithm.old_logprobs=policy, or algorithm.correction.kind=none"
            )
        return self

    @model_validator(mode="after")
    def _equal_rewards_need_two(self) -> AlgorithmConfig:
        for name, wanted in (
            ("dynamic_sampling_rounds", self.dynamic_sampling_rounds > 1),
            ("filters.zero_variance", self.filters.zero_variance),
        ):
            if wanted and self.group_size < 2:
                raise ValueError(
                    f"algorithm.{name} compares the rewards of a group, so algorithm.group_size must be >= 2; got "
                    f"{self.group_size}. Next: set algorithm.group_size=8, or leave algorithm.{name} out"
                )
        return self
