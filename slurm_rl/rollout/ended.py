"""What is made of episodes that have ended: verdicts, and groups of completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from slurm_rl.data.groups import Completion, Group
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rollout.episode import Episode
from slurm_rl.rollout.journal import BatchJournal
from slurm_rl.rollout.journal_lines import render_verdict


class _OfBatch(Protocol):
    """An episode."""

    place: int
    member: int


def score_episodes(
    episodes: Sequence[Episode], scorer: Scorer | None, journal: BatchJournal | None = None
) -> list[RewardResult]:
    """One a episode; a failed one has a cause and no value. Whom the journal knows a verdict of is not judged again."""
    results, asked = list[RewardResult](), list[int]()
    for place, one in enumerate(episodes):
        item = item_of(one)
        known = one.history.verdict if one.history is not None else None
        results.append(result_of(one, item) if known is None else RewardResult(item=item, **known))
        if known is None and one.failure is None and one.reward is None:
            asked.append(place)
    if scorer is not None:
        found = ask_scorer(scorer, [results[at].item for at in asked], [episodes[at] for at in asked], journal)
        for place, result in zip(asked, found, strict=True):
            results[place] = result
    return results


def ask_scorer(
    scorer: Scorer, items: Sequence[RewardItem], of: Sequence[_OfBatch], journal: BatchJournal | None
) -> list[RewardResult]:
    """Verdicts of the reward of the config, noted in the journal.

    Args:
        of: the episode of each item.
    """
    found = scorer.score(items) if items else []
    if journal is not None:
        said = [{key: value for key, value in vars(it).items() if key != "item"} for it in found]
        journal.write(render_verdict(one.place, one.member, it) for one, it in zip(of, said, strict=True))
    return found


def gather_groups(
    prompts: Sequence[EncodedPrompt], episodes: Sequence[Episode], results: Sequence[RewardResult]
) -> list[Group]:
    """Groups in the order of the prompts, of episodes in order of place and member."""
    completions: list[list[Completion]] = [[] for _ in prompts]
    scored: list[list[RewardResult]] = [[] for _ in prompts]
    for episode, result in zip(episodes, results, strict=True):
        completions[episode.place].append(episode.completion())
        scored[episode.place].append(result)
    return [Group(*group) for group in zip(prompts, completions, scored, strict=True)]


def item_of(episode: Episode) -> RewardItem:
    prompt = episode.prompt
    return RewardItem(
        completion=episode.last_text,
        answer=prompt.answer,
        prompt=prompt.text,
        messages=prompt.messages,
        truncated=episode.truncated,
    )


def result_of(episode: Episode, item: RewardItem) -> RewardResult:
    """What the environment said of an episode."""
    failure, reward = episode.failure, episode.reward
    if failure is None and reward is None:
        failure = Failure("bad score", "no step gave a reward, and no reward is configured")
    elif failure is None and not math.isfinite(reward or 0.0):
        failure = Failure("bad score", f"the rewards of its turns add up to {reward}")
    if failure is not None:
        return RewardResult(item=item, value=None, failure=failure.cause, detail=failure.detail)
    return RewardResult(item=item, value=reward, parts=episode.scores)
