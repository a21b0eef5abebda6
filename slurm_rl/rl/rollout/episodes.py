"""Episodes of several turns, in waves: all that are under way reply, then all their environments step, and so on.

    wave 0   the row's prompt         -> reply -> step       as a single turn, by the same seeds
    wave t   ... reply, observation   -> reply -> step       a seed of (run, purpose, step, place, member, t)

Nothing follows from time: an episode's tokens are those of its seed, and an interrupted step is sampled again to the
same digits. What an environment says is appended as tokens that nobody trains on; what was sampled is never rendered
again. `rollout.max_tokens` bounds both together, so an episode fits wherever a completion does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.environment import Reply, Row
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.worker import Call, Outcome
from slurm_rl.math.schedule import derive_seed
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rl.groups import Completion, Group, SamplingSpec, Turn
from slurm_rl.rl.rollout.sampling import PendingGroups, Sampler
from slurm_rl.train.stop import Timer


@dataclass
class Episode:
    """One episode as it grows."""

    place: int
    """Of its prompt in the batch."""
    member: int
    """Of its group."""
    prompt: EncodedPrompt
    weight_version: int = -1
    token_ids: list[int] = field(default_factory=list)
    """After the prompt: replies and observations."""
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens of the replies."""
    replies: list[Reply] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None
    ended: bool = False
    truncated: bool = False
    """A limit ended it, in turns or in tokens."""

    @property
    def name(self) -> str:
        return f"{self.place}.{self.member}"

    def add_reply(self, completion: Completion, seed: int) -> None:
        """Append what was sampled."""
        if not self.turns:
            self.weight_version = completion.weight_version
        start = len(self.token_ids)
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.turns.append(Turn(start, len(self.token_ids), completion.text))
        call_id = f"{seed}.{self.name}.{len(self.replies)}"
        self.replies.append(Reply(text=completion.text, cut=completion.truncated, call_id=call_id))

    def add_step(self, outcome: Outcome, render: TurnRenderer, limits: Limits) -> None:
        """Take what came of the newest reply: the end of the episode, or what the policy reads next."""
        if isinstance(outcome, Failure):
            self.failure, self.ended = outcome, True
            return
        said = outcome.observation if isinstance(outcome.observation, str) else _as_text(outcome.observation)
        self.turns[-1] = replace(self.turns[-1], observation=said, reward=outcome.reward)
        self.scores |= outcome.scores
        if outcome.done:
            self.ended = True
            return
        try:
            follows = render.render(outcome.observation, self.token_ids[-1] if self.token_ids else None)
        except Exception as error:  # of a template or a tokenizer that does not take it
            self.failure, self.ended = Failure("bad score", f"its observation cannot be rendered: {error}"), True
            return
        room = limits.max_tokens - len(self.token_ids) - len(follows)
        if len(self.turns) >= limits.max_turns or room < limits.turn_tokens:
            self.ended = self.truncated = True
            return
        self.token_ids += follows

    @property
    def reward(self) -> float | None:
        """What its turns add up to; None where no turn had any."""
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        return sum(rewards) if rewards else None

    def completion(self) -> Completion:
        return Completion(
            self.token_ids,
            self.logprobs,
            self.replies[-1].text,
            self.truncated,
            self.weight_version,
            turns=self.turns,
        )


@dataclass(frozen=True)
class Limits:
    """How far an episode may go."""

    max_turns: int
    turn_tokens: int
    """Longest reply."""
    max_tokens: int
    """Replies and observations together."""

    @classmethod
    def of(cls, config: EnvironmentConfig, max_tokens: int) -> Limits:
        assert config.turn_tokens is not None, "the config was checked"
        return cls(config.max_turns, config.turn_tokens, max_tokens)


@dataclass(frozen=True)
class PendingEpisodes:
    """First replies on their way."""

    spec: SamplingSpec
    first: PendingGroups


class Episodes:
    """`Rollouts` of several turns.

    Args:
        scorer: judges the last reply of an episode whose environment gave no reward; None where it must.
    """

    def __init__(
        self,
        sampler: Sampler,
        pool: EnvironmentPool,
        renderer: TurnRenderer,
        limits: Limits,
        scorer: Scorer | None,
    ) -> None:
        self.sampler, self.pool, self.renderer, self.limits, self.scorer = sampler, pool, renderer, limits, scorer

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> PendingEpisodes:
        spec = replace(spec, max_tokens=self.limits.turn_tokens)
        return PendingEpisodes(spec, self.sampler.start(prompts, spec))

    def finish(self, pending: PendingEpisodes, timer: Timer, within_s: float | None = None) -> list[Group]:
        spec = pending.spec
        with timer.phase("rollout"):
            groups = self.sampler.finish(pending.first, within_s)
        episodes = begin_episodes(groups, spec.seed)
        under_way = episodes
        while under_way:
            with timer.phase("environment"):
                self._step(under_way, spec.seed)
            under_way = [episode for episode in under_way if not episode.ended]
            if under_way:
                with timer.phase("rollout"):
                    self._reply(under_way, spec, within_s)
        self.pool.forget()
        with timer.phase("reward"):
            results = self._score(episodes)
        size = spec.num_completions
        return [
            Group(
                group.prompt,
                [episode.completion() for episode in episodes[place * size : (place + 1) * size]],
                results[place * size : (place + 1) * size],
            )
            for place, group in enumerate(groups)
        ]

    def sample(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> list[Group]:
        return self.finish(self.start(prompts, spec), Timer())

    def _step(self, episodes: Sequence[Episode], seed: int) -> None:
        calls = [
            Call(
                episode=f"{seed}.{episode.name}",
                row=row_of(episode.prompt),
                seed=derive_seed(seed, "environment", episode.place),
                replies=tuple(episode.replies),
            )
            for episode in episodes
        ]
        for episode, outcome in zip(episodes, self.pool.play(calls), strict=True):
            episode.add_step(outcome, self.renderer, self.limits)

    def _reply(self, episodes: Sequence[Episode], spec: SamplingSpec, within_s: float | None) -> None:
        prompts = [replace(one.prompt, token_ids=[*one.prompt.token_ids, *one.token_ids]) for one in episodes]
        seeds = [derive_seed(spec.seed, one.place, one.member, len(one.turns)) for one in episodes]
        pending = self.sampler.start(prompts, replace(spec, num_completions=1), seeds)
        for episode, group in zip(episodes, self.sampler.finish(pending, within_s), strict=True):
            episode.add_reply(group.completions[0], spec.seed)

    def _score(self, episodes: Sequence[Episode]) -> list[RewardResult]:
        """One a episode; a failed one has a cause and no value."""
        items = [item_of(episode) for episode in episodes]
        asked = [place for place, one in enumerate(episodes) if one.failure is None and one.reward is None]
        found = self.scorer.score([items[place] for place in asked]) if self.scorer and asked else []
        judged = dict(zip(asked, found, strict=False))
        return [judged.get(place) or result_of(one, items[place]) for place, one in enumerate(episodes)]


def begin_episodes(groups: Sequence[Group], seed: int) -> list[Episode]:
    """One a completion of first replies, in order of groups, then completions."""
    episodes = []
    for place, group in enumerate(groups):
        for member, completion in enumerate(group.completions):
            episodes.append(Episode(place, member, group.prompt))
            episodes[-1].add_reply(completion, seed)
    return episodes


def row_of(prompt: EncodedPrompt) -> Row:
    return Row(index=prompt.index, prompt=prompt.text, answer=prompt.answer, messages=prompt.messages, info=prompt.info)


def item_of(episode: Episode) -> RewardItem:
    prompt = episode.prompt
    return RewardItem(
        completion=episode.replies[-1].text,
        answer=prompt.answer,
        prompt=prompt.text,
        messages=prompt.messages,
        truncated=episode.truncated,
    )


def result_of(episode: Episode, item: RewardItem) -> RewardResult:
    """What the environment said of an episode."""
    failure = episode.failure
    if failure is None and episode.reward is None:
        failure = Failure("bad score", "no step gave a reward, and no reward is configured")
    elif failure is None and not math.isfinite(episode.reward or 0.0):
        failure = Failure("bad score", f"the rewards of its turns add up to {episode.reward}")
    if failure is not None:
        return RewardResult(item=item, value=None, failure=failure.cause, detail=failure.detail)
    return RewardResult(item=item, value=episode.reward, parts=episode.scores)


def _as_text(messages: Sequence[dict[str, object]]) -> str:
    return "\n".join(str(message["content"]) for message in messages)
