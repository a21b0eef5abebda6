"""Rewards of finished episodes, and their groups."""

import math
from collections.abc import Sequence
from typing import Protocol

from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.episode import Episode
from slurm_rl.rollout.sampling import reward_item
from slurm_rl.rollout.turn_log import BatchLog
from slurm_rl.rollout.turn_log_format import Row, render_row


class _Indexed(Protocol):
    """An episode or an agent's trajectory."""

    index: int
    member: int

    def completion(self) -> Trajectory: ...


def score_episodes(
    episodes: Sequence[Episode], scorer: Scorer | None, log: BatchLog | None = None
) -> list[RewardResult]:
    """Return one result per episode; the value of a failed one is None. Results in the log are reused."""
    results, unscored = list[RewardResult](), list[int]()
    for at, episode in enumerate(episodes):
        item = item_of(episode)
        logged = episode.history.verdict if episode.history is not None else None
        results.append(result_of(episode, item) if logged is None else RewardResult(item=item, **logged))
        if logged is None and episode.failure is None and episode.reward is None:
            unscored.append(at)
    if scorer is not None:
        scored = score_items(scorer, [results[at].item for at in unscored], [episodes[at] for at in unscored], log)
        for at, result in zip(unscored, scored, strict=True):
            results[at] = result
    return results


def score_items(
    scorer: Scorer, items: Sequence[RewardItem], episodes: Sequence[_Indexed], log: BatchLog | None
) -> list[RewardResult]:
    """Score items with the configured reward and log the results.

    Args:
        episodes: episode of each item.
    """
    results = scorer.score(items) if items else []
    if log is not None:
        verdicts = [{key: value for key, value in vars(it).items() if key != "item"} for it in results]
        pairs = zip(episodes, verdicts, strict=True)
        log.write(render_row(Row(episode.index, episode.member, verdict=verdict)) for episode, verdict in pairs)
    return results


def gather_groups(
    prompts: Sequence[EncodedPrompt], episodes: Sequence[_Indexed], results: Sequence[RewardResult]
) -> list[Group]:
    """Return groups in the order of the prompts; episodes are sorted by prompt and member."""
    completions: list[list[Trajectory]] = [[] for _ in prompts]
    scored: list[list[RewardResult]] = [[] for _ in prompts]
    for episode, result in zip(episodes, results, strict=True):
        completions[episode.index].append(episode.completion())
        scored[episode.index].append(result)
    return [Group(*group) for group in zip(prompts, completions, scored, strict=True)]


def item_of(episode: Episode) -> RewardItem:
    return reward_item(episode.prompt, episode.last_text, truncated=episode.truncated)


def result_of(episode: Episode, item: RewardItem) -> RewardResult:
    """Return the environment's reward of an episode."""
    failure, reward = episode.failure, episode.reward
    if failure is None and reward is None:
        failure = Failure("bad score", "no step gave a reward, and no reward is configured")
    elif failure is None and not math.isfinite(reward or 0.0):
        failure = Failure("bad score", f"the rewards of its turns add up to {reward}")
    if failure is not None:
        return failure.result(item)
    return RewardResult(item=item, value=reward, parts=episode.scores)
