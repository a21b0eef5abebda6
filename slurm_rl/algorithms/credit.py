"""Credit of each token: advantages, KL in the reward and targets of the critic, from scored groups. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from slurm_rl.algorithms.advantages import compute_gae, compute_scores, spread_reward, whiten
from slurm_rl.algorithms.filters import keep_mask
from slurm_rl.algorithms.kl import compute_kl
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.algorithms.train_sequences import build_plain_sequences, find_parts, join_parts
from slurm_rl.config.algorithm import AlgorithmConfig, GAEConfig
from slurm_rl.config.registry import find_advantage
from slurm_rl.data.groups import Group

_REWARD_TO_GO = GAEConfig(gamma=1.0, lam=1.0, whiten=True)
"""GAE settings of REINFORCE++, which has no discount."""


def group_rewards(groups: Sequence[Group]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rewards [P, G] float32 and a mask [P, G] of known ones; failed rewards are 0."""
    values = [[result.value for result in group.results] for group in groups]
    rewards = torch.tensor([[value or 0.0 for value in row] for row in values], dtype=torch.float32)
    return rewards, torch.tensor([[value is not None for value in row] for row in values])


def build_train_sequences(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    ref_logprobs: Sequence[FloatArray] | None,
    values: Sequence[FloatArray] | None = None,
    temperatures: Mapping[str, float] | None = None,
) -> list[TrainSequence]:
    """Return the sequences of `build_plain_sequences` with advantages and targets; `split_minibatches` adds weights.

    Args:
        ref_logprobs: one array per sequence; None without a KL term.
        values: the critic's values, one array per sequence, if the advantage needs them.
        temperatures: see `build_plain_sequences`.
    """
    parts = find_parts(groups)
    ref_logprobs = None if ref_logprobs is None else join_parts(parts, ref_logprobs)
    values = None if values is None else join_parts(parts, values)
    old = [np.asarray(item.logprobs, dtype=np.float32) for group in groups for item in group.completions]
    kl = None
    if ref_logprobs is not None and config.kl.apply_to != "loss":
        kl = kl_of_tokens(old, ref_logprobs, config)
    if kl is None or config.kl.apply_to == "reward":
        advantages, returns = compute_advantages(groups, config, kl, values)
    else:
        advantages, returns = compute_advantages(groups, config, None, values)
        # Distillation (https://thinkingmachines.ai/blog/on-policy-distillation): earlier tokens get no credit for a
        # token's KL, so the expected gradient is that of the reverse KL of each next token.
        advantages = [
            (own - config.kl.coef * token_kl).astype(np.float32) for own, token_kl in zip(advantages, kl, strict=True)
        ]
    return [
        replace(
            sequence,
            advantages=np.broadcast_to(advantages[owner], old[owner].shape)[span],
            old_logprobs=old[owner][span],
            ref_logprobs=None if ref_logprobs is None else ref_logprobs[owner][span],
            old_values=None if values is None else values[owner][span],
            returns=None if returns is None else returns[owner][span],
        )
        for sequence, (owner, span) in zip(build_plain_sequences(groups, temperatures), parts, strict=True)
    ]


def kl_of_tokens(
    logprobs: Sequence[FloatArray], ref_logprobs: Sequence[FloatArray], config: AlgorithmConfig
) -> list[FloatArray]:
    """Return the KL to the reference of each completion's tokens, by the configured estimator."""
    pairs = zip(logprobs, ref_logprobs, strict=True)
    return [compute_kl(torch.from_numpy(lp), torch.from_numpy(ref), config.kl.estimator).numpy() for lp, ref in pairs]


def completion_kl(groups: Sequence[Group], ref_logprobs: Sequence[FloatArray], config: AlgorithmConfig) -> list[float]:
    """Return the KL to the reference of each completion with a valid reward, summed over tokens.

    Args:
        ref_logprobs: one array per sequence.
    """
    known = [result.value is not None for group in groups for result in group.results]
    old = [np.asarray(item.logprobs, dtype=np.float32) for group in groups for item in group.completions]
    kl = kl_of_tokens(old, join_parts(find_parts(groups), ref_logprobs), config)
    return [float(one.sum()) for one, is_known in zip(kl, known, strict=True) if is_known]


def compute_advantages(
    groups: Sequence[Group],
    config: AlgorithmConfig,
    kl: Sequence[FloatArray] | None,
    values: Sequence[FloatArray] | None,
) -> tuple[list[FloatArray], list[FloatArray] | None]:
    """Return the advantages of each completion, one for all tokens [1] or one per token [L], and the critic's targets.

    Args:
        kl: KL of each completion's tokens, to subtract from the reward.
        values: the critic's values; None without a critic.
    """

    from slurm_rl.algorithms.turn_credit import compute_turn_advantages, turn_returns

    row, coefficient = find_advantage(config.advantage), config.kl.coef
    rewards, known = group_rewards(groups)
    if row.per_turn:
        returns = turn_returns(groups, config.turn_discount, kl, coefficient)
        return compute_turn_advantages(row, groups, known, returns), None
    if not row.per_token:
        if kl is not None:
            rewards = rewards - coefficient * torch.tensor([float(one.sum()) for one in kl]).view_as(rewards)
        scores = compute_scores(row, rewards, known).flatten().tolist()
        return [np.array([score], dtype=np.float32) for score in scores], None
    lengths = [completion.num_sampled for group in groups for completion in group.completions]
    spread = [
        spread_reward(score, None if kl is None else kl[index], lengths[index], coefficient)
        for index, score in enumerate(compute_scores(row, rewards, known).flatten().tolist())
    ]
    # Without a critic the advantage is the reward to go.
    rule = _REWARD_TO_GO if values is None else config.gae
    baseline = [np.zeros(length, dtype=np.float32) for length in lengths] if values is None else values
    advantages, targets = compute_gae(spread, baseline, discount=rule.gamma, smoothing=rule.lam)
    if rule.whiten:
        advantages = whiten(advantages, keep_mask(groups, config.filters))
    return advantages, None if values is None else targets


def correct_sampler(
    sequences: Sequence[TrainSequence], proximal_logprobs: Sequence[FloatArray] | None
) -> list[TrainSequence]:
    """Return the sequences with the ratio relative to the policy at the start of the step, and the correction from the
    sampler; see losses.py.

    Args:
        proximal_logprobs: logprobs of the policy at the start of the step; None with one optimizer step, whose forward
            pass computes the same.
    """
    olds: Sequence[FloatArray | None] = proximal_logprobs or [None] * len(sequences)
    return [
        replace(sequence, old_logprobs=old, sampler_logprobs=sequence.old_logprobs)
        for sequence, old in zip(sequences, olds, strict=True)
    ]
