"""The learning rule: critic, advantages, loss, KL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from slurm_rl.config.functions import explain_small_group, file_of
from slurm_rl.config.section import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section
from slurm_rl.config.tables import (
    ADVANTAGES,
    KL_ESTIMATORS,
    AdvantageName,
    AdvantageRow,
    CorrectionName,
    KLEstimatorName,
    LossName,
)
from slurm_rl.config.train import OptimConfig
from slurm_rl.config.user_files.load import is_file


class CriticConfig(Section):
    """The model that says what reward is still to come; read with algorithm.advantage=gae."""

    apart: bool = False
    """It has GPUs of its own, and works while the policy does; false: one process of it next to each policy worker, on
    its GPU, and they take turns."""
    num_workers: PositiveInt | None = None
    """Processes of one GPU each that hold it; null, with `apart`: as many as the policy has."""
    node_feature: str | None = None
    """One of cluster.nodes, where these processes run; null: on any."""
    init_from: str | None = None
    """Folder of a reward model (task=rm) or another model of the policy's architecture; null: the reference policy
    with a new head."""
    optim: OptimConfig = OptimConfig(lr=9e-6)
    """Its optimizer."""
    clip: PositiveFloat | None = 0.2
    """A value that moved further than this in one step is not pulled on; null: no clipping."""
    warmup_steps: NonNegativeInt = 0
    """First steps in which it learns alone, while the policy, its schedule and the KL coefficient stay as they are."""

    @property
    def is_apart(self) -> bool:
        """Whether it has processes of its own; a number of them says so, too."""
        return self.apart or self.num_workers is not None


AggregationName = Literal["token-mean", "sequence-mean", "sequence-mean-token-mean"]


class KLConfig(Section):
    """Distance to the frozen reference policy."""

    coefficient: NonNegativeFloat = 0.0
    """Weight of the KL term; at 0 no reference model is loaded."""
    estimator: KLEstimatorName = "k3"
    """Schulman's estimators (http://joschu.net/blog/kl-approx.html)."""
    where: Literal["loss", "reward", "advantage"] = "loss"
    """Add it to the loss (k2 or k3), or take it from the reward before the advantage; with gae, reinforce_pp and
    reinforce_pp_baseline from that of each token. advantage (k1): from each token's own advantage and no other's, which
    is on-policy distillation where reference.path is a teacher."""
    bias_correction: bool = False
    """With where=loss and k3, multiply the KL of each token by the policy's ratio (DeepSeek-V3.2,
    https://arxiv.org/abs/2512.02556): the expected gradient is then that of the KL itself. It is TRL's
    use_bias_correction_kl, which is on by default there."""
    target: PositiveFloat | None = None
    """With where=reward, change the coefficient after each step until the KL of a completion, summed over its
    tokens, comes to so many nats (Ziegler et al. 2019); null: it stays as it is."""
    horizon: PositiveInt = 10_000
    """Completions in which an error of 20 % or more changes the coefficient by 20 %."""

    def problems(self) -> Iterator[str]:
        if self.coefficient > 0 and self.where == "loss" and not KL_ESTIMATORS[self.estimator].in_loss:
            fit = [name for name, row in KL_ESTIMATORS.items() if row.in_loss]
            yield (
                f"algorithm.kl.estimator must be {' or '.join(fit)} with algorithm.kl.where=loss, since the expected "
                f"gradient of {self.estimator} is 0 whatever the distance; got {self.estimator!r}. "
                f"Next: algorithm.kl.estimator={fit[0]}, or algorithm.kl.where=reward"
            )
        if self.coefficient > 0 and self.where == "advantage" and self.estimator != "k1":
            yield (
                "algorithm.kl.estimator must be k1 with algorithm.kl.where=advantage, since as an advantage k1 alone "
                f"makes the gradient of the KL; got {self.estimator!r}. Next: algorithm.kl.estimator=k1"
            )
        if self.bias_correction and (self.coefficient == 0 or self.where != "loss" or self.estimator != "k3"):
            yield (
                "algorithm.kl.bias_correction needs a KL term in the loss by k3; got "
                f"coefficient={self.coefficient}, where={self.where!r} and estimator={self.estimator!r}. Next: "
                "algorithm.kl.coefficient=0.001 algorithm.kl.where=loss algorithm.kl.estimator=k3, or leave it out"
            )
        if self.target is not None and (self.coefficient == 0 or self.where != "reward"):
            yield (
                "algorithm.kl.target needs a KL term in the reward whose coefficient is above 0 to begin with; "
                f"got coefficient={self.coefficient} and where={self.where!r}. "
                "Next: algorithm.kl.coefficient=0.01 algorithm.kl.where=reward, or algorithm.kl.target=null"
            )


class GAEConfig(Section):
    """Generalised advantage estimation; read with advantage=gae."""

    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of the next token's value; 1: a reward counts the same however many tokens came before it."""
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.95
    """GAE's lambda: 0 trusts the critic's next value, 1 the rewards alone."""
    whiten: bool = True
    """Advantages of a step get mean 0 and deviation 1 over its tokens."""


class CorrectionConfig(Section):
    """Importance correction between the sampler and the policy.

    With one, the policy's ratio is taken to its own logprobs at the start of the step; these cost a forward pass over
    the batch where more than one optimizer step is made of it. TRL recomputes and corrects by default
    (vllm_importance_sampling_correction, sequence_mask), verl recomputes by default and recommends truncation at 2.
    """

    kind: CorrectionName | None = "auto"
    """auto: none where the sampler is the policy (float32, its own weights, nothing that bends the distribution), else
    geometric_mask for the losses of whole sequences (gspo, gspo_token) and token_tis for the others. token_tis: each
    token's ratio, at most high. icepop: each token's ratio, 0 outside [low, high]. sequence_mask: the product of a
    sequence's ratios, 0 outside. geometric_mask: 1 where the geometric mean of a sequence's ratios lies inside, else 0.
    null: no correction, and the ratio is taken to the sampler."""
    low: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Smallest ratio let through (icepop, sequence_mask, geometric_mask); 0: no lower bound."""
    high: Annotated[float, Field(gt=1)] = 2.0
    """Largest ratio let through; with token_tis the largest weight of a token."""


class FilterConfig(Section):
    """Completions left out of the loss and of its mean; they still count in their group's baseline."""

    zero_variance: bool = False
    """Leave out groups whose completions are all equally right: by the verifiers that judge the answer (arithmetic,
    math, code; of services and functions the scores acc_rewards and scores), else by the reward before overlong."""
    truncated: bool = False
    """Leave out completions that the length limit cut."""
    min_tokens: NonNegativeInt = 0
    """Leave out completions of fewer tokens."""
    max_tokens: PositiveInt | None = None
    """Leave out completions of more tokens; null: none."""
    function: Annotated[str, file_of("algorithm.filters.function")] | None = None
    """`file.py:name`, a function (groups, config) that says of each completion of each group whether it is kept."""

    def problems(self) -> Iterator[str]:
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            yield (
                "algorithm.filters.max_tokens must be >= algorithm.filters.min_tokens, or nothing is left; "
                f"got {self.max_tokens} < {self.min_tokens}. Next: raise max_tokens, or lower min_tokens"
            )


class OverlongConfig(Section):
    """DAPO's soft punishment of completions that come near the length limit."""

    buffer_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Over this last share of rollout.max_tokens the reward falls, linearly, by `penalty`; 0 punishes nothing."""
    penalty: PositiveFloat = 1.0
    """What a completion at the limit loses."""


class AlgorithmConfig(Section):
    """The parts of an algorithm; each is chosen by name, or as a function of the user's own, `file.py:name`."""

    advantage: AdvantageName = "group_norm"
    """How rewards of a group become advantages: group_norm, dr_grpo, rloo, turn_rloo, gae, reinforce_pp,
    reinforce_pp_baseline, none (they have no part in it), or `file.py:name`, a function (rewards, known)."""
    turn_discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of the next turn's return, with advantage=turn_rloo; 1: a reward counts the same however many turns before."""
    loss: LossName = "grpo"
    """The policy loss of one token: grpo, gspo, gspo_token, cispo, or `file.py:name`, a function (inputs, clip)."""
    aggregation: AggregationName = "token-mean"
    """How token losses become one number. token-mean: the mean over all tokens of the batch; sequence-mean: the mean
    over sequences of each one's sum (see aggregation_length); sequence-mean-token-mean: that of each one's mean."""
    aggregation_length: PositiveInt | None = None
    """For sequence-mean: divide each sequence's sum by this constant (Dr. GRPO: rollout.max_tokens)."""
    group_size: Annotated[int, Field(ge=1)] = 8
    """Completions sampled for each prompt."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio is clipped at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped at 1 + clip_high (DAPO's clip-higher: 0.28)."""
    clip_dual: Annotated[float, Field(gt=1)] | None = 3.0
    """With loss=grpo and a negative advantage the ratio counts for so much at most (dual clip,
    https://arxiv.org/abs/1912.09729; verl's clip_ratio_c and its 3, TRL's delta); null: no bound."""
    correction: CorrectionConfig = CorrectionConfig()
    """For completions whose sampler was not the policy: older weights, another program."""
    overlong: OverlongConfig = OverlongConfig()
    """Reward lost near the length limit."""
    group_reward: Annotated[str, file_of("algorithm.group_reward")] | None = None
    """`file.py:name`, a function (prompt, completions, rewards) that sees all completions or episodes of a prompt and
    makes the reward of each of what each was given; in training alone."""
    filters: FilterConfig = FilterConfig()
    """What the loss leaves out."""
    dynamic_sampling_rounds: PositiveInt = 1
    """Sample other prompts until the batch is full of groups that filters.zero_variance keeps, at most so often (DAPO);
    at the bound, others fill it. 1: take what comes."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Weight of the policy's entropy, which the loss then raises."""
    kl: KLConfig = KLConfig()
    """Distance to the reference."""
    gae: GAEConfig = GAEConfig()
    """Per-token advantages from a critic."""

    @property
    def needs_values(self) -> bool:
        """Whether the advantage is made from a critic's values."""
        return self._advantage_row is not None and self._advantage_row.needs_values

    @property
    def _advantage_row(self) -> AdvantageRow | None:
        # A user's file is looked at when a run is new, never when a saved config is read; it has no critic.
        return None if is_file(self.advantage) else ADVANTAGES[self.advantage]

    def problems(self) -> Iterator[str]:
        if self.group_size < 2 and self._advantage_row is not None and self._advantage_row.needs_group:
            yield (explain_small_group(self.advantage, self.group_size))
        if self.turn_discount != 1 and self._advantage_row is not None and not self._advantage_row.per_turn:
            yield (
                f"algorithm.turn_discount is read with algorithm.advantage=turn_rloo; got {self.turn_discount:g} with "
                f"{self.advantage!r}. Next: algorithm.turn_discount=1, or algorithm.advantage=turn_rloo"
            )
        for name, wanted in (
            ("dynamic_sampling_rounds", self.dynamic_sampling_rounds > 1),
            ("filters.zero_variance", self.filters.zero_variance),
        ):
            if wanted and self.group_size < 2:
                yield (
                    f"algorithm.{name} compares the rewards of a group, so algorithm.group_size must be >= 2; got "
                    f"{self.group_size}. Next: set algorithm.group_size=8, or leave algorithm.{name} out"
                )
