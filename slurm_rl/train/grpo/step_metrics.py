"""The numbers of one step, from what the phases returned. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from slurm_rl.train.grpo.types import Group
from slurm_rl.train.math.pass_at_k import mean_pass_at_k
from slurm_rl.train.rewards.types import RewardResult

# Verifiers that judge the answer; others judge its form.
_CORRECTNESS = ("arithmetic", "math")


def sampling_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards and lengths of one step's completions."""
    results = [result for group in groups for result in group.results]
    rewards = np.array([result.value for result in results if result.value is not None])
    completions = [completion for group in groups for completion in group.completions]
    lengths = np.array([len(completion.token_ids) for completion in completions])
    spread = [len({result.value for result in group.results}) > 1 for group in groups]
    metrics = {
        "reward/failed": float(sum(result.failure is not None for result in results)),
        "reward/groups_with_signal": float(np.mean(spread)),
        "completion/length_mean": float(lengths.mean()),
        "completion/length_max": float(lengths.max()),
        "completion/truncated": float(np.mean([completion.truncated for completion in completions])),
        "tokens/sampled": float(lengths.sum()),
        "tokens/prompt": float(sum(len(group.prompt.token_ids) * len(group.completions) for group in groups)),
    }
    if len(rewards):
        metrics |= {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    for cause, count in Counter(result.failure for result in results if result.failure).items():
        metrics[f"reward/failed_{cause.replace(' ', '_')}"] = float(count)
    return metrics


def training_metrics(totals: Sequence[Mapping[str, float]], num_tokens: int) -> dict[str, float]:
    """Means over the minibatches of one step of what `PolicyWorker.train_*` returned.

    Args:
        totals: one a minibatch: the loss, the gradient norm, and sums over tokens.
        num_tokens: trained tokens of all minibatches.
    """
    metrics = {
        "policy/loss": float(np.mean([total["loss"] for total in totals])),
        "policy/grad_norm": float(np.mean([total["grad_norm"] for total in totals])),
    }
    # A minibatch without any gradient has none of them.
    names = [name for name in dict.fromkeys(itertools.chain.from_iterable(totals)) if name not in ("loss", "grad_norm")]
    for name in names:
        values = [total.get(name, 0.0) for total in totals]
        metrics[name] = max(values) if name.endswith("/max") else sum(values) / max(num_tokens, 1)
    return metrics


def accuracy(results: Sequence[RewardResult]) -> float:
    """Share of right answers; a failed reward counts as wrong. Without a verifier of answers, the mean reward."""
    return float(np.mean(_scores(results)))


def pass_rates(groups: Sequence[Group]) -> dict[str, float]:
    """pass@k of held-out groups of equal size; a completion is right at the full score of its verifier."""
    size = len(groups[0].results)
    scores = np.reshape(_scores([result for group in groups for result in group.results]), (len(groups), size))
    return mean_pass_at_k(size, (scores >= 1.0).sum(axis=1).tolist())


def _scores(results: Sequence[RewardResult]) -> list[float]:
    judges = [name for name in _CORRECTNESS if any(name in result.parts for result in results)]
    if not judges:
        return [result.value or 0.0 for result in results]
    return [result.parts.get(judges[0], 0.0) for result in results]
