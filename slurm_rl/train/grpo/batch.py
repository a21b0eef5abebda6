"""From scored groups to training sequences: advantages, weights, KL in the reward. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slurm_rl.config.algorithm import AlgorithmConfig, FilterConfig
from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.grpo.types import Group
from slurm_rl.train.math.advantages import ADVANTAGES
from slurm_rl.train.math.correction import correction_weights
from slurm_rl.train.math.kl import compute_kl
from slurm_rl.train.math.losses import aggregation_weights
from slurm_rl.train.math.shaping import punish_overlong
from slurm_rl.train.types import FloatArray, TrainSequence


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


def has_signal(group: Group) -> bool:
    """The verifier told the completions apart; a shaped reward may differ even so."""
    return len({result.value for result in group.results if result.value is not None}) > 1


def rollout_logprobs(groups: Sequence[Group]) -> list[FloatArray]:
    """What the sampler said of its tokens, one array a completion."""
    return [np.asarray(item.logprobs, dtype=np.float32) for group in groups for item in group.completions]


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


def build_train_sequences(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    ref_logprobs: Sequence[FloatArray] | None,
    *,
    max_tokens: int,
    policy_logprobs: Sequence[FloatArray] | None = None,
) -> list[TrainSequence]:
    """One sequence a completion, in order of groups, then completions. What the filters leave out has no weight.

    Args:
        ref_logprobs: one array a completion, or None without a KL term.
        max_tokens: the length limit of the sampling.
        policy_logprobs: one array a completion: the ratio's denominator; None takes the sampler's.
    """
    rewards = group_rewards(groups)
    completions = [completion for group in groups for completion in group.completions]
    sampled = rollout_logprobs(groups)
    old = sampled if policy_logprobs is None else list(policy_logprobs)
    if ref_logprobs is not None and config.kl.where == "reward":
        penalty = [
            float(compute_kl(torch.from_numpy(lp), torch.from_numpy(ref), config.kl.estimator).sum())
            for lp, ref in zip(old, ref_logprobs, strict=True)
        ]
        rewards = rewards - config.kl.coefficient * torch.tensor(penalty).view_as(rewards)
    overlong = config.overlong
    lengths = [len(completion.token_ids) for completion in completions]
    rewards = rewards + punish_overlong(lengths, max_tokens, overlong.share, overlong.penalty).view_as(rewards)
    advantages = ADVANTAGES[config.advantage](rewards).flatten().tolist()
    kept = keep_mask(groups, config.filters)
    weights = np.zeros(len(lengths))
    weights[kept] = aggregation_weights(
        config.aggregation, [n for n, keep in zip(lengths, kept, strict=True) if keep], config.aggregation_length
    )
    prompts = [group.prompt for group in groups for _ in group.completions]
    return [
        TrainSequence(
            token_ids=np.asarray([*prompt.token_ids, *completion.token_ids], dtype=np.int64),
            trained_from=len(prompt.token_ids),
            weight=float(weight),
            advantages=np.float32(advantage) * correction_weights(old[index], sampled[index], config.correction),
            old_logprobs=logprobs,
            ref_logprobs=None if ref_logprobs is None else ref_logprobs[index],
        )
        for index, (prompt, completion, weight, advantage, logprobs) in enumerate(
            zip(prompts, completions, weights, advantages, old, strict=True)
        )
    ]


def drop_without_gradient(sequences: Sequence[TrainSequence], config: AlgorithmConfig) -> list[TrainSequence]:
    """The sequences that move the policy: where every advantage is 0 (a group of equal rewards) nothing does.

    Weights were made from the whole batch before, so the gradient is the same in every digit but rounding.
    With a KL term in the loss, or an entropy bonus, each sequence of weight has a gradient.
    """
    sequences = [s for s in sequences if s.weight > 0]
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
        )
        for prompt, answer, weight in zip(prompts, answers, weights, strict=True)
    ]


def split_minibatches(sequences: list[TrainSequence], num_minibatches: int) -> list[list[TrainSequence]]:
    """Consecutive equal parts; each part's weights are scaled so that every optimizer step is a mean.

    Weights were made for the whole batch; a part holds about 1/n of their sum.
    """
    if num_minibatches == 1:
        return [sequences]
    from dataclasses import replace

    size = len(sequences) // num_minibatches
    return [
        [replace(item, weight=item.weight * num_minibatches) for item in sequences[start : start + size]]
        for start in range(0, size * num_minibatches, size)
    ]
