"""From scored groups to training sequences: advantages, weights, KL in the reward. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from slurm_rl.config.algorithm import AlgorithmConfig, CorrectionConfig, FilterConfig, OverlongConfig
from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.grpo.types import Completion, Group
from slurm_rl.train.math.advantages import ADVANTAGES
from slurm_rl.train.math.correction import CORRECTIONS
from slurm_rl.train.math.gae import compute_gae, spread_reward, whiten
from slurm_rl.train.math.kl import compute_kl
from slurm_rl.train.math.losses import aggregation_weights
from slurm_rl.train.rewards.types import RewardResult
from slurm_rl.train.types import FloatArray, TrainSequence

Metrics = dict[str, float]


def group_rewards(groups: Sequence[Group]) -> torch.Tensor:
    """Rewards [P, G]; a failed reward takes the mean of its group's others, so that its advantage is
    about 0 and it pushes the policy nowhere. A group with no reward at all is all zeros."""
    rows = []
    for group in groups:
        values = [result.value for result in group.results]
        known = [value for value in values if value is not None]
        fill = sum(known) / len(known) if known else 0.0
        rows.append([fill if value is None else value for value in values])
    return torch.tensor(rows, dtype=torch.float32)


def overlong_penalty(length: int, max_tokens: int, config: OverlongConfig) -> float:
    """Reward that a completion of `length` tokens gets for its length alone, 0 or below.

    DAPO (https://arxiv.org/abs/2503.14476, eq. 13) with L_max = max_tokens and L_cache = buffer_share * L_max:
    0 up to L_max - L_cache, then (L_max - L_cache - length) / L_cache, which is -1 at the limit; times `penalty`.
    """
    buffer = config.buffer_share * max_tokens
    if buffer == 0:
        return 0.0
    return config.penalty * min(0.0, max(-1.0, (max_tokens - buffer - length) / buffer))


def shape_overlong(groups: Sequence[Group], config: OverlongConfig, max_tokens: int) -> list[Group]:
    """The groups with each score lowered by its completion's length; a failed one stays failed."""

    def shape(result: RewardResult, completion: Completion) -> RewardResult:
        penalty = overlong_penalty(len(completion.token_ids), max_tokens, config)
        if result.value is None or penalty == 0:
            return result
        return replace(result, value=result.value + penalty, parts={**result.parts, "overlong": penalty})

    return [
        replace(group, results=[shape(*pair) for pair in zip(group.results, group.completions, strict=True)])
        for group in groups
    ]


def build_plain_sequences(groups: Sequence[Group]) -> list[TrainSequence]:
    """One sequence a completion, in order of groups, then completions, to be read and not trained on."""
    return [
        TrainSequence(
            token_ids=np.asarray([*group.prompt.token_ids, *completion.token_ids], dtype=np.int64),
            trained_from=len(group.prompt.token_ids),
            images=group.prompt.images,
        )
        for group in groups
        for completion in group.completions
    ]


def keep_mask(groups: Sequence[Group], config: FilterConfig) -> list[bool]:
    """For each completion, in order of groups, whether the loss has it."""
    return [
        (has_signal(group) or not config.zero_variance)
        and not (item.truncated and config.truncated)
        and len(item.token_ids) >= config.min_tokens
        and (config.max_tokens is None or len(item.token_ids) <= config.max_tokens)
        for group in groups
        for item in group.completions
    ]


def count_kept_tokens(groups: Sequence[Group], config: FilterConfig) -> int:
    """Tokens of the completions that the loss has."""
    completions = [item for group in groups for item in group.completions]
    return sum(len(item.token_ids) for item, keep in zip(completions, keep_mask(groups, config), strict=True) if keep)


def has_signal(group: Group) -> bool:
    """The rewards of the group differ; failed ones have none."""
    return len({result.value for result in group.results if result.value is not None}) > 1


def build_train_sequences(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    ref_logprobs: Sequence[FloatArray] | None,
    proximal_logprobs: Sequence[FloatArray] | None = None,
    values: Sequence[FloatArray] | None = None,
) -> list[TrainSequence]:
    """One sequence a completion, in order of groups, then completions. What the filters leave out has no weight.

    Args:
        ref_logprobs: one array a completion, or None without a KL term.
        values: the critic's, one array a completion, for an advantage that needs them.
        proximal_logprobs: the same under the policy at the start of the step, for `correction.kind`. The correction
            goes into the advantages: every loss is linear in them, and the weights are never negative.
    """
    completions = [completion for group in groups for completion in group.completions]
    old = [np.asarray(completion.logprobs, dtype=np.float32) for completion in completions]
    kept = keep_mask(groups, config.filters)
    if values is not None:
        # There may be no other completion of its prompt whose reward could stand for one that failed.
        known = [result.value is not None for group in groups for result in group.results]
        kept = [keep and is_known for keep, is_known in zip(kept, known, strict=True)]
    kl = None
    if ref_logprobs is not None and config.kl.where == "reward":
        kl = kl_of_tokens(old, ref_logprobs, config)
    advantages, returns = compute_advantages(group_rewards(groups), config, kl, values, kept)
    lengths = [len(completion.token_ids) for completion in completions]
    weights = np.zeros(len(lengths))
    weights[kept] = aggregation_weights(
        config.aggregation, [n for n, keep in zip(lengths, kept, strict=True) if keep], config.aggregation_length
    )
    prompts = [group.prompt for group in groups for _ in group.completions]
    corrections = correct(old, proximal_logprobs, config.correction)
    return [
        TrainSequence(
            token_ids=np.asarray([*prompt.token_ids, *completion.token_ids], dtype=np.int64),
            trained_from=len(prompt.token_ids),
            weight=float(weight),
            advantages=advantage * corrections[index],
            old_logprobs=logprobs if proximal_logprobs is None else proximal_logprobs[index],
            ref_logprobs=None if ref_logprobs is None else ref_logprobs[index],
            old_values=None if values is None else values[index],
            returns=None if returns is None else returns[index],
            images=prompt.images,
        )
        for index, (prompt, completion, weight, advantage, logprobs) in enumerate(
            zip(prompts, completions, weights, advantages, old, strict=True)
        )
    ]


def kl_of_tokens(
    logprobs: Sequence[FloatArray], ref_logprobs: Sequence[FloatArray], config: AlgorithmConfig
) -> list[FloatArray]:
    """KL to the reference of each completion's tokens, by the configured estimator."""
    pairs = zip(logprobs, ref_logprobs, strict=True)
    return [compute_kl(torch.from_numpy(lp), torch.from_numpy(ref), config.kl.estimator).numpy() for lp, ref in pairs]


def completion_kl(groups: Sequence[Group], ref_logprobs: Sequence[FloatArray], config: AlgorithmConfig) -> float:
    """KL of a completion to the reference, summed over its tokens; mean over the completions."""
    old = [np.asarray(item.logprobs, dtype=np.float32) for group in groups for item in group.completions]
    return float(np.mean([one.sum() for one in kl_of_tokens(old, ref_logprobs, config)]))


def compute_advantages(
    rewards: torch.Tensor,
    config: AlgorithmConfig,
    kl: Sequence[FloatArray] | None,
    values: Sequence[FloatArray] | None,
    kept: Sequence[bool],
) -> tuple[list[FloatArray], list[FloatArray] | None]:
    """Advantages of each completion, for all its tokens [1] or for each [L]; and what a critic should have said.

    Args:
        rewards: [P, G].
        kl: of each completion's tokens, to be taken from the reward.
        kept: which completions the loss has.
    """
    if values is None:
        if kl is not None:
            rewards = rewards - config.kl.coefficient * torch.tensor([float(one.sum()) for one in kl]).view_as(rewards)
        found = ADVANTAGES[config.advantage](rewards).flatten().tolist()
        return [np.array([advantage], dtype=np.float32) for advantage in found], None
    spread = [
        spread_reward(float(score), None if kl is None else kl[index], len(values[index]), config.kl.coefficient)
        for index, score in enumerate(rewards.flatten())
    ]
    advantages, returns = compute_gae(spread, values, discount=config.gae.discount, smoothing=config.gae.smoothing)
    return whiten(advantages, kept) if config.gae.whiten else advantages, returns


def correct(
    sampled: Sequence[FloatArray], proximal: Sequence[FloatArray] | None, config: CorrectionConfig
) -> list[FloatArray]:
    """Importance weights of each completion's tokens; ones without a correction."""
    if config.kind is None or proximal is None:
        return [np.ones_like(logprobs) for logprobs in sampled]
    correction = CORRECTIONS[config.kind]
    pairs = zip(proximal, sampled, strict=True)
    return [correction(policy - sampler, config.low, config.high) for policy, sampler in pairs]


def correction_metrics(groups: Sequence[Group], proximal: Sequence[FloatArray], config: CorrectionConfig) -> Metrics:
    """How far the sampler was from the policy, and what the correction made of it; means over tokens."""
    sampled = [np.asarray(c.logprobs, dtype=np.float32) for group in groups for c in group.completions]
    difference = np.concatenate([policy - sampler for policy, sampler in zip(proximal, sampled, strict=True)])
    weights = np.concatenate(correct(sampled, proximal, config))
    return {
        # k3 of the sampler to the policy.
        "mismatch/kl": float(np.mean(np.expm1(difference) - difference)),
        "mismatch/mean": float(np.mean(np.abs(difference))),
        "mismatch/max": float(np.max(np.abs(difference))),
        "correction/weight_mean": float(weights.mean()),
        "correction/dropped": float(np.mean(weights == 0)),
    }


def drop_without_weight(sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
    """The sequences that the filters keep; a critic learns of them all, whatever their advantages."""
    return [s for s in sequences if s.weight > 0]


def drop_without_gradient(sequences: Sequence[TrainSequence], config: AlgorithmConfig) -> list[TrainSequence]:
    """The sequences that move the policy: where every advantage is 0 (a group of equal rewards) nothing does.

    Weights were made from the whole batch before, so the gradient is the same in every digit but rounding.
    With a KL term in the loss, or an entropy bonus, each sequence of weight has a gradient.
    """
    sequences = drop_without_weight(sequences)
    if (config.kl.coefficient > 0 and config.kl.where == "loss") or config.entropy_bonus > 0:
        return sequences
    return [s for s in sequences if s.advantages is not None and s.advantages.any()]


def build_answer_sequences(prompts: Sequence[EncodedPrompt], answers: Sequence[Sequence[int]]) -> list[TrainSequence]:
    """Prompt and reference answer as one sequence each, every answer token of equal weight."""
    weights = aggregation_weights("token-mean", [len(answer) for answer in answers], None)
    return [
        TrainSequence(
            token_ids=np.asarray([*prompt.token_ids, *answer], dtype=np.int64),
            trained_from=len(prompt.token_ids),
            weight=float(weight),
            images=prompt.images,
        )
        for prompt, answer, weight in zip(prompts, answers, weights, strict=True)
    ]


def split_minibatches(sequences: list[TrainSequence], num_minibatches: int) -> list[list[TrainSequence]]:
    """Consecutive equal parts; each part's weights are scaled so that every optimizer step is a mean.

    Weights were made for the whole batch; a part holds about 1/n of their sum.
    """
    if num_minibatches == 1:
        return [sequences]
    size = len(sequences) // num_minibatches
    return [
        [replace(item, weight=item.weight * num_minibatches) for item in sequences[start : start + size]]
        for start in range(0, size * num_minibatches, size)
    ]
