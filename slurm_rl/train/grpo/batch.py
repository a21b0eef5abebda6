"""From scored groups to training sequences: advantages, weights, KL in the reward. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from slurm_rl.config.algorithm import AlgorithmConfig, OverlongConfig
from slurm_rl.train.data.tokenize import EncodedPrompt
from slurm_rl.train.grpo.types import Completion, Group
from slurm_rl.train.math.advantages import ADVANTAGES
from slurm_rl.train.math.kl import compute_kl
from slurm_rl.train.math.losses import aggregation_weights
from slurm_rl.train.rewards.types import RewardResult
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


def build_train_sequences(
    groups: Sequence[Group], config: AlgorithmConfig, ref_logprobs: Sequence[FloatArray] | None
) -> list[TrainSequence]:
    """One sequence a completion, in order of groups, then completions.

    Args:
        ref_logprobs: one array a completion, or None without a KL term.
    """
    rewards = group_rewards(groups)
    completions = [completion for group in groups for completion in group.completions]
    old = [np.asarray(completion.logprobs, dtype=np.float32) for completion in completions]
    if ref_logprobs is not None and config.kl.where == "reward":
        penalty = [
            float(compute_kl(torch.from_numpy(lp), torch.from_numpy(ref), config.kl.estimator).sum())
            for lp, ref in zip(old, ref_logprobs, strict=True)
        ]
        rewards = rewards - config.kl.coefficient * torch.tensor(penalty).view_as(rewards)
    advantages = ADVANTAGES[config.advantage](rewards).flatten().tolist()
    lengths = [len(completion.token_ids) for completion in completions]
    weights = aggregation_weights(config.aggregation, lengths, config.aggregation_length)
    prompts = [group.prompt for group in groups for _ in group.completions]
    return [
        TrainSequence(
            token_ids=np.asarray([*prompt.token_ids, *completion.token_ids], dtype=np.int64),
            trained_from=len(prompt.token_ids),
            weight=float(weight),
            advantages=np.full(length, advantage, dtype=np.float32),
            old_logprobs=logprobs,
            ref_logprobs=None if ref_logprobs is None else ref_logprobs[index],
        )
        for index, (prompt, completion, weight, length, advantage, logprobs) in enumerate(
            zip(prompts, completions, weights, lengths, advantages, old, strict=True)
        )
    ]


def drop_without_gradient(sequences: Sequence[TrainSequence], config: AlgorithmConfig) -> list[TrainSequence]:
    """The sequences that move the policy: where every advantage is 0 (a group of equal rewards) nothing does.

    Weights were made from the whole batch before, so the gradient is the same in every digit but rounding.
    With a KL term in the loss each sequence has a gradient.
    """
    if config.kl.coefficient > 0 and config.kl.where == "loss":
        return list(sequences)
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
    size = len(sequences) // num_minibatches
    return [
        [replace(item, weight=item.weight * num_minibatches) for item in sequences[start : start + size]]
        for start in range(0, size * num_minibatches, size)
    ]
