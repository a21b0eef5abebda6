"""The numbers of one step, from what the phases returned. Pure."""

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
    from slurm_rl.data.mixing import Rates

_MOST_SCORES = 256
"""Names of scores in one step; each episode may say others."""


def sampling_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards and lengths of one step's completions."""

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
    """Return the mean of each score, of the names that most results have: one metric each, over the whole run."""
    counts = Counter(name for result in results for name in result.parts if is_name(name))
    names = dict(counts.most_common(_MOST_SCORES))
    found = {f"score/{name}": float(np.mean([r.parts[name] for r in results if name in r.parts])) for name in names}
    return found | ({"reward/score_names_dropped": float(len(counts) - len(names))} if len(counts) > len(names) else {})


def by_source(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each source, in order of names."""
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
    """The same of each source by itself, where there are several; nothing of one."""
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
    """Of episodes: how many turns they had, and how much of them the environment said; nothing of single turns."""
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
    """Of episodes with calls of tools: how many there were, and how many of them went wrong, by cause."""

    from slurm_rl.envs.environment import ToolError

    calls = [call for completion in completions for turn in completion.turns for call in turn.calls]
    if not calls:
        return {}
    errors = Counter(call.error for call in calls if call.error)
    shares = {f"tools/failed_{error}": errors[error] / len(calls) for error in get_args(ToolError)}
    return {"tools/calls_mean": len(calls) / len(completions), **shares}


def kept_metrics(groups: Sequence[Group], config: FilterConfig) -> dict[str, float]:
    """Of the completions that the loss has: their tokens, and the entropy that their sampling shows.

    That is the mean of `-log p` of the sampled tokens. Its expectation is the entropy, of every token kept and without
    a forward pass; `entropy/mean` is exact, but of the tokens computed on alone.
    """
    completions = [completion for group in groups for completion in group.completions]
    pairs = zip(completions, keep_mask(groups, config), strict=True)
    logprobs = [logprob for completion, keep in pairs if keep for logprob in completion.logprobs]
    found = {"tokens/trained": float(len(logprobs))}
    return found | {"entropy/sampled": -float(np.mean(logprobs))} if logprobs else found


def training_metrics(totals: Sequence[Mapping[str, float]], num_tokens: int, num_kept: int) -> dict[str, float]:
    """Means over the optimizer steps of one step of what `PolicyWorker.train_*` returned.

    `entropy/mean`, `mismatch/*`, `correction/*` and `kl/reference` are over the tokens computed on: those that are
    known to have no gradient (of groups without signal) cost no forward pass. `tokens/computed` beside
    `tokens/trained` says how many these are. The clip changes nothing where the advantage is 0, so
    `policy/clip_fraction` is a share of all tokens kept.

    Args:
        totals: one an optimizer step: the loss, the gradient norm, and sums over tokens.
        num_tokens: tokens computed on in all of them.
        num_kept: tokens that the loss has, in all of them.
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
    """The powers of 2 up to the number of samples of a prompt, but 1.

    >>> pass_sizes(1), pass_sizes(6)
    ([], [2, 4])
    """
    return [2**power for power in range(1, num_samples.bit_length()) if 2**power <= num_samples]


def pass_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """`accuracy/pass@k` for the powers of 2 up to the number of samples of a prompt; nothing for one sample."""

    from slurm_rl.algorithms.estimates import pass_at_k

    num_samples = len(groups[0].completions)
    right = [sum(score >= 1.0 for score in scores) for scores in judge_groups(groups)]
    return {
        f"accuracy/pass@{k}": float(np.mean([pass_at_k(num_samples, c, k) for c in right]))
        for k in pass_sizes(num_samples)
    }


def accuracy(groups: Sequence[Group]) -> float:
    """Share of right answers; a failed reward counts as wrong. Without a verifier of answers, the mean reward."""
    return float(np.mean([score for scores in judge_groups(groups) for score in scores]))


def source_accuracy(groups: Sequence[Group], name: str) -> dict[str, float]:
    """That of each source by itself, where there are several: `source/<source>/<name>`."""
    return {f"source/{source}/{name}": accuracy(part) for source, part in by_source(groups).items() if source}


def judge_groups(groups: Sequence[Group]) -> list[list[float]]:
    """How right each completion of each group is: by its source's verifier of answers, else by its reward."""
    judges = {
        name: _find_judge([result for group in part for result in group.results])
        for name, part in by_source(groups).items()
    }
    return [[_judge(result, judges[group.prompt.source]) for result in group.results] for group in groups]


def score_rows(groups: Sequence[Group]) -> list[tuple[str, list[float | None]]]:
    """(id of its row, how right each completion is) of each group; None of a failure."""
    return [
        (
            group.prompt.row_id,
            [None if result.failure else score for result, score in zip(group.results, scores, strict=True)],
        )
        for group, scores in zip(groups, judge_groups(groups), strict=True)
    ]


def curriculum_metrics(rates: Rates, config: CurriculumConfig) -> dict[str, float]:
    """How many rows were sampled, and how many of them are passed over, as too easy and as too hard."""
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
