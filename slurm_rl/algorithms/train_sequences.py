"""From scored groups to training sequences: advantages, KL in the reward, corrections. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from slurm_rl.algorithms.advantages import compute_gae, spread_reward, whiten
from slurm_rl.algorithms.filters import keep_mask
from slurm_rl.algorithms.kl import compute_kl
from slurm_rl.algorithms.losses import aggregation_weights
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig, GAEConfig, OverlongConfig
from slurm_rl.config.registry import AdvantageEntry, find_advantage
from slurm_rl.data.groups import Branch, Completion, Group
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import ConfigError
from slurm_rl.rewards.results import RewardResult

_SHOWN_CHARS = 200

_REWARD_TO_GO = GAEConfig(gamma=1.0, lam=1.0, whiten=True)
"""GAE settings of REINFORCE++, which has no discount."""


def group_rewards(groups: Sequence[Group]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards [P, G] float32, and which of them are known [P, G] bool: a failed one is 0 and not known."""
    values = [[result.value for result in group.results] for group in groups]
    rewards = torch.tensor([[value or 0.0 for value in row] for row in values], dtype=torch.float32)
    return rewards, torch.tensor([[value is not None for value in row] for row in values])


def overlong_penalty(length: int, max_tokens: int, config: OverlongConfig) -> float:
    """Return the length penalty of a completion, at most 0.

    DAPO (https://arxiv.org/abs/2503.14476, eq. 13) with L_max = max_tokens and L_cache = buffer_share * L_max: 0 up to
    L_max - L_cache, then (L_max - L_cache - length) / L_cache, which is -1 at the limit; times `penalty`.
    """
    buffer = config.buffer_share * max_tokens
    if buffer == 0:
        return 0.0
    return config.penalty * min(0.0, max(-1.0, (max_tokens - buffer - length) / buffer))


def shape_overlong(groups: Sequence[Group], config: OverlongConfig, max_tokens: Mapping[str, int]) -> list[Group]:
    """The groups with each score lowered by its completion's length; a failed one stays failed.

    Args:
        max_tokens: longest completion of each source.
    """

    def shape(result: RewardResult, completion: Completion, longest: int) -> RewardResult:
        penalty = overlong_penalty(len(completion.token_ids), longest, config)
        if result.value is None or penalty == 0:
            return result
        parts = {**result.parts, "overlong": penalty}
        return replace(result, value=result.value + penalty, unshaped=result.value, parts=parts)

    return [
        replace(
            group,
            results=[
                shape(result, completion, max_tokens[group.prompt.source])
                for result, completion in zip(group.results, group.completions, strict=True)
            ],
        )
        for group in groups
    ]


def build_plain_sequences(
    groups: Sequence[Group], temperatures: Mapping[str, float] | None = None
) -> list[TrainSequence]:
    """Return one sequence per completion or branch, in the order of groups and completions, without learning targets.

    Args:
        temperatures: sampling temperature by source, if they differ; see `own_temperatures`.
    """
    if temperatures:
        return [
            replace(sequence, temperature=temperatures[group.prompt.source])
            for group in groups
            for sequence in build_plain_sequences([group])
        ]
    return [
        sequence
        for group in groups
        for completion in group.completions
        for sequence in _build_branches(group.prompt, completion)
    ]


def _build_branches(prompt: EncodedPrompt, completion: Completion) -> list[TrainSequence]:
    if not completion.branches:
        return [_mask_environment(_join(prompt, completion.token_ids), completion)]
    return [
        TrainSequence(
            token_ids=np.asarray([*branch.context, *completion.token_ids[branch.start : branch.end]], dtype=np.int64),
            trained_from=len(branch.context),
            trained=np.asarray(places, dtype=np.int64) - branch.start + len(branch.context),
        )
        for branch, places in _places_of_branches(completion)
    ]


def _places_of_branches(completion: Completion) -> list[tuple[Branch, list[int]]]:
    """Each branch with the places of its sampled tokens in `token_ids`."""
    places = completion.sampled_places() or range(len(completion.token_ids))
    return [(branch, [it for it in places if branch.start <= it < branch.end]) for branch in completion.branches]


def find_parts(groups: Sequence[Group]) -> list[tuple[int, slice]]:
    """Return for each sequence the index of its completion and the slice of the completion's sampled tokens."""
    parts: list[tuple[int, slice]] = []
    for owner, completion in enumerate(completion for group in groups for completion in group.completions):
        first = 0
        for _, places in _places_of_branches(completion):
            parts.append((owner, slice(first, first + len(places))))
            first += len(places)
        if not completion.branches:
            parts.append((owner, slice(None)))
    return parts


def join_parts(parts: Sequence[tuple[int, slice]], arrays: Sequence[FloatArray]) -> list[FloatArray]:
    """From one array a sequence to one a completion."""
    joined: dict[int, FloatArray] = {}
    for (owner, _), array in zip(parts, arrays, strict=True):
        joined[owner] = np.concatenate([joined[owner], array]) if owner in joined else array
    return [*joined.values()]


def _join(prompt: EncodedPrompt, answer: Sequence[int], weight: float = 0.0) -> TrainSequence:
    token_ids = np.asarray([*prompt.token_ids, *answer], dtype=np.int64)
    return TrainSequence(token_ids=token_ids, trained_from=len(prompt.token_ids), weight=weight, images=prompt.images)


def _mask_environment(sequence: TrainSequence, completion: Completion) -> TrainSequence:
    """Exclude the environment's tokens of an episode from training."""
    places = completion.sampled_places()
    if places is None or len(places) == len(completion.token_ids):
        return sequence
    return replace(sequence, trained=sequence.trained_from + np.asarray(places, dtype=np.int64))


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
        advantages = distill(advantages, kl, config.kl.coef)
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


def distill(advantages: Sequence[FloatArray], kl: Sequence[FloatArray], coefficient: float) -> list[FloatArray]:
    """`A_t - coefficient * (log p_t - log q_t)`, [L] of each completion: of a token's distance to the teacher q, which
    the tokens before it are not credited with (https://thinkingmachines.ai/blog/on-policy-distillation).

    Summed over the policy's own tokens its expected gradient is that of the reverse KL of each next token.

    Args:
        advantages: of each completion, [1] or [L].
        kl: of each completion's tokens by k1, [L].
    """
    return [(one - coefficient * far).astype(np.float32) for one, far in zip(advantages, kl, strict=True)]


def kl_of_tokens(
    logprobs: Sequence[FloatArray], ref_logprobs: Sequence[FloatArray], config: AlgorithmConfig
) -> list[FloatArray]:
    """KL to the reference of each completion's tokens, by the configured estimator."""
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

    from slurm_rl.algorithms.turn_credit import turn_returns

    row, coefficient = find_advantage(config.advantage), config.kl.coef
    rewards, known = group_rewards(groups)
    if row.per_turn:
        return compute_turn_advantages(
            row, groups, known, turn_returns(groups, config.turn_discount, kl, coefficient)
        ), None
    if not row.per_token:
        if kl is not None:
            rewards = rewards - coefficient * torch.tensor([float(one.sum()) for one in kl]).view_as(rewards)
        found = compute_scores(row, rewards, known).flatten().tolist()
        return [np.array([advantage], dtype=np.float32) for advantage in found], None
    lengths = [completion.num_sampled for group in groups for completion in group.completions]
    spread = [
        spread_reward(one, None if kl is None else kl[index], lengths[index], coefficient)
        for index, one in enumerate(compute_scores(row, rewards, known).flatten().tolist())
    ]
    # Without a critic nothing is expected, and the advantage is all that is still to come.
    rule = _REWARD_TO_GO if values is None else config.gae
    baseline = [np.zeros(length, dtype=np.float32) for length in lengths] if values is None else values
    advantages, returns = compute_gae(spread, baseline, discount=rule.gamma, smoothing=rule.lam)
    if rule.whiten:
        advantages = whiten(advantages, keep_mask(groups, config.filters))
    return advantages, None if values is None else returns


def compute_turn_advantages(
    row: AdvantageEntry, groups: Sequence[Group], known: torch.Tensor, returns: Sequence[Sequence[float]]
) -> list[FloatArray]:
    """Each turn's return less its agent's baseline, [L] of each completion; 0 where there is nothing to compare.

    Args:
        returns: of each turn of each completion, in order of groups.
    """

    from slurm_rl.algorithms.turn_credit import first_returns, spread_turns, turn_agents

    completions = [completion for group in groups for completion in group.completions]
    wholes = [first_returns(*pair) for pair in zip(completions, returns, strict=True)]
    advantages = [np.zeros(len(turns), dtype=np.float32) for turns in returns]
    for agent in dict.fromkeys(agent for whole in wholes for agent in whole):
        came = torch.tensor([one.get(agent, 0.0) for one in wholes], dtype=torch.float32).view_as(known)
        has = known & torch.tensor([agent in one for one in wholes]).view_as(known)
        baselines = (came - compute_scores(row, came, has)).flatten().tolist()
        is_compared = (has & (has.sum(-1, keepdim=True) > 1)).flatten().tolist()
        for place, completion in enumerate(completions):
            for turn, who in enumerate(turn_agents(completion)):
                if who == agent:
                    advantages[place][turn] = (returns[place][turn] - baselines[place]) * is_compared[place]
    return [spread_turns(completion, found) for completion, found in zip(completions, advantages, strict=True)]


def compute_scores(row: AdvantageEntry, rewards: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the advantages that the registered function computes from rewards [P, G].

    Raises:
        ConfigError: a user's function did not return a finite number for each.
    """
    scores = row.load()(rewards, known)
    if not isinstance(scores, torch.Tensor) or scores.shape != rewards.shape or not torch.isfinite(scores).all():
        is_tensor = isinstance(scores, torch.Tensor)
        found = f"{list(scores.shape)}, {scores.flatten().tolist()}" if is_tensor else type(scores).__name__
        raise ConfigError(
            f"algorithm.advantage ({row.function}) makes one finite number of each reward, {list(rewards.shape)}",
            seen=found if len(found) < _SHOWN_CHARS else f"{found[:_SHOWN_CHARS]}...",
            action="correct the function and submit again",
        )
    return scores


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


def build_answer_sequences(prompts: Sequence[EncodedPrompt], answers: Sequence[Sequence[int]]) -> list[TrainSequence]:
    """Prompt and reference answer as one sequence each, every answer token of equal weight."""
    weights = aggregation_weights("token-mean", [len(answer) for answer in answers], None)
    return [_join(*row) for row in zip(prompts, answers, weights.tolist(), strict=True)]
