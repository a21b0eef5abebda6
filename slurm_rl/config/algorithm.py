"""Config of the RL objective: critic, advantage, loss, KL, importance correction, filters."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from slurm_rl.config.registry import (
    ADVANTAGES,
    KL_ESTIMATORS,
    AdvantageEntry,
    AdvantageName,
    CorrectionName,
    KLEstimatorName,
    LossName,
)
from slurm_rl.config.section import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Section,
    file_of,
)
from slurm_rl.config.train import OptimConfig
from slurm_rl.config.user_files.load import is_file


class CriticConfig(Section):
    """Value model of PPO; used with algorithm.advantage=gae."""

    dedicated_gpus: bool = False
    """Give the critic its own GPUs, so that it trains in parallel with the policy; false: each critic process shares
    the GPU of a policy worker, in turn."""
    num_workers: PositiveInt | None = None
    """Critic processes of one GPU each, which implies `dedicated_gpus`; null with it: as many as policy workers."""
    node_group: str | None = None
    """Node group (a name in cluster.nodes) that critic processes run on; null: any."""
    init_from: str | None = None
    """Folder of a reward model (task=rm), or of another model of the policy's architecture, that initializes the
    critic; null: the reference policy with a new value head."""
    optim: OptimConfig = OptimConfig(lr=9e-6)
    """Optimizer of the critic."""
    clip: PositiveFloat | None = 0.2
    """Clip range of the value loss: values that moved further in one step get no gradient; null: no clipping."""
    warmup_steps: NonNegativeInt = 0
    """First steps that train only the critic; the policy, its schedule and the KL coefficient stay unchanged."""

    @property
    def is_dedicated(self) -> bool:
        """Whether the critic has its own processes and GPUs."""
        return self.dedicated_gpus or self.num_workers is not None


AggregationName = Literal["token-mean", "sequence-mean", "sequence-mean-token-mean"]


class KLConfig(Section):
    """KL divergence to the frozen reference policy."""

    coef: NonNegativeFloat = 0.0
    """Weight of the KL term; at 0 no reference model is loaded."""
    estimator: KLEstimatorName = "k3"
    """Schulman's KL estimator (http://joschu.net/blog/kl-approx.html)."""
    apply_to: Literal["loss", "reward", "advantage"] = "loss"
    """loss: add the KL to the loss (k2 or k3). reward: subtract it from the reward before the advantage, per token with
    gae, reinforce_pp and reinforce_pp_baseline. advantage: subtract it from each token's own advantage (k1), which is
    on-policy distillation if reference.path is another model."""
    bias_correction: bool = False
    """With apply_to=loss and k3, multiply each token's KL by the policy ratio, which makes the gradient unbiased
    (DeepSeek-V3.2, https://arxiv.org/abs/2512.02556; TRL's use_bias_correction_kl, on by default there)."""
    target: PositiveFloat | None = None
    """With apply_to=reward, adapt the coefficient after each step toward this KL per completion, in nats (Ziegler et
    al. 2019); null: keep it constant."""
    horizon: PositiveInt = 10_000
    """Completions over which an error of 20 % or more changes the coefficient by 20 %."""

    def problems(self) -> Iterator[str]:
        if self.coef > 0 and self.apply_to == "loss" and not KL_ESTIMATORS[self.estimator].in_loss:
            fit = [name for name, row in KL_ESTIMATORS.items() if row.in_loss]
            yield (
                f"algorithm.kl.estimator must be {' or '.join(fit)} with algorithm.kl.apply_to=loss, since the "
                f"expected "
                f"gradient of {self.estimator} is 0; got {self.estimator!r}. "
                f"Next: algorithm.kl.estimator={fit[0]}, or algorithm.kl.apply_to=reward"
            )
        if self.coef > 0 and self.apply_to == "advantage" and self.estimator != "k1":
            yield (
                "algorithm.kl.estimator must be k1 with algorithm.kl.apply_to=advantage, since only k1 gives the "
                "gradient "
                f"of the KL there; got {self.estimator!r}. Next: algorithm.kl.estimator=k1"
            )
        if self.bias_correction and (self.coef == 0 or self.apply_to != "loss" or self.estimator != "k3"):
            yield (
                "algorithm.kl.bias_correction needs a KL term in the loss by k3; got "
                f"coef={self.coef}, apply_to={self.apply_to!r} and estimator={self.estimator!r}. Next: "
                "algorithm.kl.coef=0.001 algorithm.kl.apply_to=loss algorithm.kl.estimator=k3, or leave it out"
            )
        if self.target is not None and (self.coef == 0 or self.apply_to != "reward"):
            yield (
                "algorithm.kl.target needs a KL term in the reward with an initial coefficient above 0; "
                f"got coef={self.coef} and apply_to={self.apply_to!r}. "
                "Next: algorithm.kl.coef=0.01 algorithm.kl.apply_to=reward, or algorithm.kl.target=null"
            )


class GAEConfig(Section):
    """Generalized advantage estimation (https://arxiv.org/abs/1506.02438); used with advantage=gae."""

    gamma: PositiveFraction = 1.0
    """Discount factor per token; 1: no discount."""
    lam: Fraction = 0.95
    """Lambda: 0 relies on the critic's next value, 1 only on rewards."""
    whiten: bool = True
    """Normalize the advantages of a step to mean 0 and standard deviation 1 over its tokens."""


class CorrectionConfig(Section):
    """Importance correction between sampler and policy.

    It computes the policy's logprobs at the start of the step, one more forward pass if a step has several optimizer
    updates. TRL corrects by default (sequence_mask); verl recommends truncation at 2.
    """

    kind: CorrectionName | None = "auto"
    """token_tis: truncate each token's ratio at high. icepop: zero token ratios outside [low, high]. sequence_mask:
    zero sequences whose product of ratios is outside. geometric_mask: zero sequences whose geometric mean is outside.
    auto: none if the sampler equals the policy (float32, on-policy weights, unmodified distribution), else
    geometric_mask for sequence-level losses (gspo, gspo_token) and token_tis for others. null: no correction; the
    ratio is taken to the sampler's logprobs."""
    low: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Smallest ratio kept by icepop, sequence_mask and geometric_mask; 0: no lower bound."""
    high: Annotated[float, Field(gt=1)] = 2.0
    """Largest ratio kept; with token_tis the largest weight of a token."""


class FilterConfig(Section):
    """Completions excluded from the loss; they still count in their group's baseline."""

    drop_zero_variance_groups: bool = False
    """Drop groups whose completions are all equally correct, by the verifiers of the answer (arithmetic, math, code; a
    service's or function's acc_rewards or scores), else by the reward before overlong shaping."""
    truncated: bool = False
    """Drop completions cut at the length limit."""
    min_tokens: NonNegativeInt = 0
    """Drop completions with fewer tokens."""
    max_tokens: PositiveInt | None = None
    """Drop completions with more tokens; null: no limit."""
    function: Annotated[str, file_of("algorithm.filters.function")] | None = None
    """`file.py:name`, a function (groups, config) that returns for each completion of each group whether to keep it."""

    def problems(self) -> Iterator[str]:
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            yield (
                "algorithm.filters.max_tokens must be >= algorithm.filters.min_tokens, or nothing is left; "
                f"got {self.max_tokens} < {self.min_tokens}. Next: raise max_tokens, or lower min_tokens"
            )


class OverlongConfig(Section):
    """DAPO's soft length penalty."""

    buffer_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Last share of rollout.max_tokens over which the reward falls linearly by `penalty`; 0: no penalty."""
    penalty: PositiveFloat = 1.0
    """Reward subtracted at the length limit."""


class AlgorithmConfig(Section):
    """The RL algorithm; each part is a built-in name or a user's function, `file.py:name`."""

    advantage: AdvantageName = "group_norm"
    """Advantage estimator: group_norm, dr_grpo, rloo, turn_rloo, gae, reinforce_pp, reinforce_pp_baseline, none
    (rewards are ignored), or `file.py:name`, a function (rewards, known)."""
    turn_discount: PositiveFraction = 1.0
    """With advantage=turn_rloo, discount factor per turn; 1: no discount."""
    loss: LossName = "grpo"
    """Policy loss per token: grpo, gspo, gspo_token, cispo, or `file.py:name`, a function (inputs, clip)."""
    aggregation: AggregationName = "token-mean"
    """Reduction of token losses. token-mean: mean over all tokens of the batch; sequence-mean: mean over sequences of
    each sum (see aggregation_length); sequence-mean-token-mean: mean over sequences of each mean."""
    aggregation_length: PositiveInt | None = None
    """With sequence-mean, divide each sequence's sum by this constant (Dr. GRPO: rollout.max_tokens)."""
    group_size: PositiveInt = 8
    """Completions sampled per prompt."""
    clip_ratio_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip range: the ratio is clipped at 1 - clip_ratio_low."""
    clip_ratio_high: PositiveFloat = 0.2
    """Upper clip range: the ratio is clipped at 1 + clip_ratio_high (DAPO's clip-higher: 0.28)."""
    clip_ratio_c: Annotated[float, Field(gt=1)] | None = 3.0
    """With loss=grpo, upper bound of the ratio for negative advantages (dual-clip PPO,
    https://arxiv.org/abs/1912.09729; verl's clip_ratio_c, TRL's delta); null: no bound."""
    correction: CorrectionConfig = CorrectionConfig()
    """Importance correction for completions sampled off-policy."""
    overlong: OverlongConfig = OverlongConfig()
    """Penalty near the length limit."""
    group_reward: Annotated[str, file_of("algorithm.group_reward")] | None = None
    """`file.py:name`, a function (prompt, completions, rewards) that returns new rewards from all completions of a
    prompt; training only."""
    filters: FilterConfig = FilterConfig()
    """Completions excluded from the loss."""
    dynamic_sampling_rounds: PositiveInt = 1
    """Sampling rounds per step at most, to fill the batch with groups that filters.drop_zero_variance_groups keeps
    (DAPO); after the last, other groups fill it. 1: no resampling."""
    entropy_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus in the loss."""
    kl: KLConfig = KLConfig()
    """KL to the reference policy."""
    gae: GAEConfig = GAEConfig()
    """Generalized advantage estimation."""

    @property
    def needs_values(self) -> bool:
        """Whether the advantage uses a critic's values."""
        return self._advantage_row is not None and self._advantage_row.needs_values

    @property
    def _advantage_row(self) -> AdvantageEntry | None:
        # A user's file is read for new runs only, and never has a critic.
        return None if is_file(self.advantage) else ADVANTAGES[self.advantage]

    def problems(self) -> Iterator[str]:
        if self.group_size < 2 and self._advantage_row is not None and self._advantage_row.needs_group:
            yield explain_small_group(self.advantage, self.group_size)
        if self.turn_discount != 1 and self._advantage_row is not None and not self._advantage_row.per_turn:
            yield (
                f"algorithm.turn_discount needs algorithm.advantage=turn_rloo; got {self.turn_discount:g} with "
                f"{self.advantage!r}. Next: algorithm.turn_discount=1, or algorithm.advantage=turn_rloo"
            )
        for name, wanted in (
            ("dynamic_sampling_rounds", self.dynamic_sampling_rounds > 1),
            ("filters.drop_zero_variance_groups", self.filters.drop_zero_variance_groups),
        ):
            if wanted and self.group_size < 2:
                yield (
                    f"algorithm.{name} compares the rewards of a group, so algorithm.group_size must be >= 2; got "
                    f"{self.group_size}. Next: set algorithm.group_size=8, or leave algorithm.{name} out"
                )


def explain_small_group(advantage: str, group_size: int) -> str:
    """Return the error for an advantage that compares the completions of a prompt."""
    return (
        f"algorithm.group_size must be >= 2 for advantage {advantage!r}, which compares the completions of one prompt; "
        f"got {group_size}. Next: set algorithm.group_size=8, or algorithm.advantage=reinforce_pp or gae"
    )
