"""Metrics of one step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np

from slurm_rl.algorithms.filters import has_signal, keep_mask
from slurm_rl.algorithms.totals import add_totals, is_maximum
from slurm_rl.config.algorithm import FilterConfig
from slurm_rl.config.data import CurriculumConfig
from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.rewards.results import RewardResult
from slurm_rl.rewards.values import is_name
from slurm_rl.rewards.verifiers import JUDGES

if TYPE_CHECKING:
    from slurm_rl.data.curriculum import Rates

_MOST_SCORES = 256
"""Largest number of score names in one step."""


def sampling_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return metrics of rewards and lengths."""

    from slurm_rl.trainers.grpo.agent_metrics import agent_metrics

    results = [result for group in groups for result in group.results]
    rewards = np.array([result.value for result in results if result.value is not None])
    completions = [completion for group in groups for completion in group.completions]
    lengths = np.array([completion.num_sampled for completion in completions])
    metrics = {
        "reward/failed": float(sum(result.failure is not None for result in results)),
        "reward/groups_with_signal": float(np.mean([has_signal(group) for group in groups])),
        "completion/length_mean": float(lengths.mean()),
        "completion/length_max": float(lengths.max()),
        "completion/truncated": float(np.mean([completion.truncated for completion in completions])),
        "tokens/sampled": float(lengths.sum()),
        "tokens/prompt": float(sum(len(group.prompt.token_ids) * len(group.completions) for group in groups)),
    }
    if len(rewards):
        metrics |= {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    metrics |= score_metrics(results)
    metrics |= episode_metrics(completions)
    for cause, count in Counter(result.failure for result in results if result.failure).items():
        metrics[f"reward/failed_{cause.replace(' ', '_')}"] = float(count)
    return metrics | source_metrics(groups) | agent_metrics(groups)


def score_metrics(results: Sequence[RewardResult]) -> dict[str, float]:
    """Return the mean of each of the most frequent scores."""
    counts = Counter(name for result in results for name in result.parts if is_name(name))
    names = dict(counts.most_common(_MOST_SCORES))
    found = {f"score/{name}": float(np.mean([r.parts[name] for r in results if name in r.parts])) for name in names}
    return found | ({"reward/score_names_dropped": float(len(counts) - len(names))} if len(counts) > len(names) else {})


def by_source(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Return the groups of each source, sorted by name."""
    names = sorted({group.prompt.source for group in groups})
    return {name: [group for group in groups if group.prompt.source == name] for name in names}


def staleness_metrics(groups: Sequence[Group], version: int, *, mixed: bool) -> dict[str, float]:
    """Return the staleness metrics of a batch; `mixed`: also the number of completions with several weight versions."""
    completions = [completion for group in groups for completion in group.completions]
    # Steps between the weights that sampled a token and the policy at `version`.
    ages = [version - token for completion in completions for token in completion.versions()]
    found = {"rollout/staleness": sum(ages) / max(len(ages), 1)}
    if mixed:
        found["rollout/mixed_weights"] = sum(
            bool(it.details and it.details.token_versions) for it in completions
        ) / len(completions)
    return found


def source_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return metrics per source; empty without named sources."""
    found: dict[str, float] = {}
    for name, part in by_source(groups).items():
        if name:
            results = [result for group in part for result in group.results]
            completions = [completion for group in part for completion in group.completions]
            rewards = [result.value for result in results if result.value is not None]
            values = {
                "prompts": float(len(part)),
                "failed": float(sum(result.failure is not None for result in results)),
                "groups_with_signal": float(np.mean([has_signal(group) for group in part])),
                "length_mean": float(np.mean([completion.num_sampled for completion in completions])),
                "truncated": float(np.mean([completion.truncated for completion in completions])),
            }
            if rewards:
                values["reward"] = float(np.mean(rewards))
            found |= {f"source/{name}/{key}": value for key, value in values.items()}
    return found


def episode_metrics(completions: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of turns and environment tokens; empty for single turns."""
    if not any(completion.turns for completion in completions):
        return {}
    turns = [len(completion.turns) for completion in completions]
    sequences = [completion.num_sequences for completion in completions]
    num_tokens = sum(len(completion.token_ids) for completion in completions)
    num_sampled = sum(completion.num_sampled for completion in completions)
    return {
        "episode/turns_mean": float(np.mean(turns)),
        "episode/turns_max": float(max(turns)),
        "episode/masked": 1.0 - num_sampled / max(num_tokens, 1),
        **({"episode/sequences_mean": float(np.mean(sequences))} if max(sequences) > 1 else {}),
        **tool_metrics(completions),
    }


def tool_metrics(completions: Sequence[Trajectory]) -> dict[str, float]:
    """Return the number of tool calls per episode and the share of failed ones by cause."""

    from slurm_rl.envs.environment import ToolError

    calls = [call for completion in completions for turn in completion.turns for call in turn.calls]
    if not calls:
        return {}
    errors = Counter(call.error for call in calls if call.error)
    shares = {f"tools/failed_{error}": errors[error] / len(calls) for error in get_args(ToolError)}
    return {"tools/calls_mean": len(calls) / len(completions), **shares}


def kept_metrics(groups: Sequence[Group], config: FilterConfig) -> dict[str, float]:
    """Return the number of tokens of kept completions, and their mean `-log p`.

    `entropy/sampled` is an unbiased estimate of the entropy over all kept tokens without a forward pass; `entropy/mean`
    is exact, over the tokens with a gradient.
    """
    completions = [completion for group in groups for completion in group.completions]
    pairs = zip(completions, keep_mask(groups, config), strict=True)
    logprobs = [logprob for completion, keep in pairs if keep for logprob in completion.logprobs]
    found = {"tokens/trained": float(len(logprobs))}
    return found | {"entropy/sampled": -float(np.mean(logprobs))} if logprobs else found


def training_metrics(totals: Sequence[Mapping[str, float]], num_tokens: int, num_kept: int) -> dict[str, float]:
    """Return means over the optimizer steps of one step.

    `entropy/mean`, `mismatch/*`, `correction/*` and `kl/reference` are means over the computed tokens
    (`tokens/computed`); tokens without a gradient need no forward pass. `policy/clip_fraction` is a share of all kept
    tokens, since the clip has no effect where the advantage is 0.

    Args:
        totals: loss, gradient norm and sums over tokens of each optimizer step.
        num_tokens: computed tokens in all of them.
        num_kept: kept tokens in all of them.
    """
    metrics = {
        "policy/loss": float(np.mean([total["loss"] for total in totals])),
        "policy/grad_norm": float(np.mean([total["grad_norm"] for total in totals])),
    }
    added: dict[str, float] = {}
    for total in totals:
        add_totals(added, {name: value for name, value in total.items() if name not in ("loss", "grad_norm")})
    counts = {"policy/clip_fraction": max(num_kept, 1)}
    means = {n: v if is_maximum(n) else v / counts.get(n, max(num_tokens, 1)) for n, v in added.items()}
    return metrics | means


def pass_sizes(num_samples: int) -> list[int]:
    """Return the powers of 2 from 2 to the number of samples of a prompt.

    >>> pass_sizes(1), pass_sizes(6)
    ([], [2, 4])
    """
    return [2**power for power in range(1, num_samples.bit_length()) if 2**power <= num_samples]


def pass_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return `accuracy/pass@k` for `pass_sizes`."""

    from slurm_rl.algorithms.estimates import pass_at_k

    found = {}
    known = [[score for score in scores if score is not None] for _, scores in score_rows(groups)]
    for k in pass_sizes(len(groups[0].completions)):
        if rates := [pass_at_k(len(row), sum(score >= 1.0 for score in row), k) for row in known if len(row) >= k]:
            found[f"accuracy/pass@{k}"] = float(np.mean(rates))
    return found


def accuracy(groups: Sequence[Group]) -> float | None:
    """Return the share of right answers, or the mean reward without a verifier; None if all rewards failed."""
    known = [score for _, scores in score_rows(groups) for score in scores if score is not None]
    return float(np.mean(known)) if known else None


def source_accuracy(groups: Sequence[Group], name: str) -> dict[str, float]:
    """Return the accuracy per source as `source/<source>/<name>`."""
    found = {source: accuracy(part) for source, part in by_source(groups).items() if source}
    return {f"source/{source}/{name}": value for source, value in found.items() if value is not None}


def count_failed(groups: Sequence[Group]) -> int:
    """Return the number of completions whose reward failed."""
    return sum(score is None for _, scores in score_rows(groups) for score in scores)


def judge_groups(groups: Sequence[Group]) -> list[list[float]]:
    """Return the correctness of each completion: the score of its source's verifier, else its reward."""
    judges = {
        name: _find_judge([result for group in part for result in group.results])
        for name, part in by_source(groups).items()
    }
    return [[_judge(result, judges[group.prompt.source]) for result in group.results] for group in groups]


def score_rows(groups: Sequence[Group]) -> list[tuple[str, list[float | None]]]:
    """Return row id and correctness of each completion by group; None for a failure."""
    return [
        (
            group.prompt.row_id,
            [None if result.failure else score for result, score in zip(group.results, scores, strict=True)],
        )
        for group, scores in zip(groups, judge_groups(groups), strict=True)
    ]


def curriculum_metrics(rates: Rates, config: CurriculumConfig) -> dict[str, float]:
    """Return the number of sampled, too easy and too hard rows."""
    judged = [known for known in rates.values() if known[1] >= config.min_samples]
    return {
        "curriculum/sampled": float(len(rates)),
        "curriculum/too_easy": float(sum(known[0] >= config.high * known[1] for known in judged)),
        "curriculum/too_hard": float(sum(known[0] <= config.low * known[1] for known in judged)),
    }


def _find_judge(results: Sequence[RewardResult]) -> str | None:
    return next((name for name in JUDGES if any(name in result.parts for result in results)), None)


def _judge(result: RewardResult, judge: str | None) -> float:
    return result.value or 0.0 if judge is None else result.parts.get(judge, 0.0)
