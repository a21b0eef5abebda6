"""An episode as it grows, and what is made of those that have ended; in whatever order they are sampled."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.environment import Reply, Row
from slurm_rl.envs.worker import Answer, Call, Outcome, Snapshot, digest_step
from slurm_rl.math.schedule import derive_seed
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rewards.scorer import Scorer
from slurm_rl.rl.groups import Completion, Group, Turn
from slurm_rl.rl.rollout.journal import BatchJournal
from slurm_rl.rl.rollout.journal_lines import History, TurnPlace, render_outcome, render_reply, render_verdict


@dataclass
class Episode:
    """One episode as it grows."""

    place: int
    """Of its prompt in the batch."""
    member: int
    """Of its group."""
    prompt: EncodedPrompt
    seed: int
    """Of its batch."""
    versions: list[int] = field(default_factory=list)
    """Of the weights behind each token of the replies."""
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
    digests: list[int] = field(default_factory=list)
    """Of its steps."""
    snapshot: Snapshot | None = None
    """Of its world, the newest."""
    history: History | None = None
    """What the journal has of it; None as soon as something else was sampled."""

    @property
    def name(self) -> str:
        """Names it among all episodes of the run."""
        return f"{self.seed}.{self.place}.{self.member}"

    @property
    def turn(self) -> TurnPlace:
        """The newest."""
        return TurnPlace(self.place, self.member, len(self.turns) - 1)

    @property
    def next_seed(self) -> int:
        """Of the next reply; of the first as vLLM seeds the completions of one prompt."""
        if not self.turns:
            return derive_seed(self.seed, self.place) + self.member
        return derive_seed(self.seed, self.place, self.member, len(self.turns))

    def next_prompt(self) -> EncodedPrompt:
        """What the next reply follows."""
        return replace(self.prompt, token_ids=[*self.prompt.token_ids, *self.token_ids])

    def add_reply(self, completion: Completion) -> None:
        """Append what was sampled."""
        turn, start = len(self.turns), len(self.token_ids)
        self.versions += completion.versions()
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.turns.append(Turn(start, len(self.token_ids), completion.text))
        # With its tokens: who does an effect once a name must not take another reply for one that it has had.
        call_id = f"{self.name}.{turn}.{zlib.crc32(array('q', self.token_ids).tobytes()):08x}"
        self.replies.append(
            Reply(
                text=completion.text,
                cut=completion.truncated,
                content=completion.content,
                calls=completion.calls,
                call_id=call_id,
            )
        )
        known = self.history.replies[turn:] if self.history is not None else ()
        if not known or known[0].token_ids != completion.token_ids:
            self.history = None

    def next_call(self) -> Call:
        return Call(
            episode=self.name,
            row=row_of(self.prompt),
            seed=derive_seed(self.seed, "environment", self.place),
            replies=tuple(self.replies),
            expected=tuple(self.digests),
            snapshot=self.snapshot,
        )

    def recall(self) -> Answer | None:
        """What the journal knows to have come of the newest reply."""
        history, turn = self.history, len(self.turns) - 1
        if history is None or turn >= len(history.outcomes):
            return None
        kept = history.snapshot
        is_of_turn = kept is not None and kept.num_replies == turn + 1
        return Answer(self.name, history.outcomes[turn], kept.data if kept is not None and is_of_turn else None)

    def add_answer(self, answer: Answer, render: TurnRenderer, limits: Limits) -> None:
        """Take what came of the newest reply, and how the world is now."""
        assert answer.outcome is not None
        self.snapshot = None if answer.snapshot is None else Snapshot(len(self.replies), answer.snapshot)
        self.add_step(answer.outcome, render, limits)

    def add_step(self, outcome: Outcome, render: TurnRenderer, limits: Limits) -> None:
        """Take what came of the newest reply: the end of the episode, or what the policy reads next."""
        if isinstance(outcome, Failure):
            self.failure, self.ended = outcome, True
            return
        self.digests.append(digest_step(outcome))
        said = outcome.observation if isinstance(outcome.observation, str) else _as_text(outcome.observation)
        self.turns[-1] = replace(self.turns[-1], observation=said, reward=outcome.reward, calls=outcome.calls)
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
        first = self.versions[0] if self.versions else -1
        return Completion(
            self.token_ids,
            self.logprobs,
            self.replies[-1].text,
            self.truncated,
            first,
            self.versions if any(version != first for version in self.versions) else [],
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


def begin_episodes(groups: Sequence[Group], seed: int, journal: BatchJournal | None = None) -> list[Episode]:
    """One a completion of first replies, in order of groups, then completions."""
    episodes = []
    for place, group in enumerate(groups):
        for member, completion in enumerate(group.completions):
            known = journal.histories.get((place, member)) if journal is not None else None
            episodes.append(Episode(place, member, group.prompt, seed, history=known))
            episodes[-1].add_reply(completion)
    return episodes


def note_reply(episode: Episode) -> bytes:
    """A line of the journal: its newest reply."""
    turn, first = episode.turns[-1], len(episode.versions)
    count = turn.end - turn.start
    versions = episode.versions[first - count :]
    reply = Completion(
        episode.token_ids[turn.start : turn.end],
        episode.logprobs[first - count :],
        turn.reply,
        episode.replies[-1].cut,
        versions[0] if versions else -1,
        versions if any(version != versions[0] for version in versions) else [],
        content=episode.replies[-1].content,
        calls=episode.replies[-1].calls,
    )
    return render_reply(episode.turn, reply)


def note_answer(episode: Episode, answer: Answer) -> bytes:
    """A line of the journal: what came of its newest reply."""
    assert answer.outcome is not None
    return render_outcome(episode.turn, answer.outcome, answer.snapshot)


def score_episodes(
    episodes: Sequence[Episode], scorer: Scorer | None, journal: BatchJournal | None = None
) -> list[RewardResult]:
    """One a episode; a failed one has a cause and no value. Whom the journal knows a verdict of is not judged again."""
    items = [item_of(episode) for episode in episodes]
    judged: dict[int, RewardResult] = {}
    asked = []
    for place, one in enumerate(episodes):
        known = one.history.verdict if one.history is not None else None
        if known is not None:
            judged[place] = RewardResult(item=items[place], **known)
        elif one.failure is None and one.reward is None:
            asked.append(place)
    found = scorer.score([items[place] for place in asked]) if scorer is not None and asked else []
    fresh = dict(zip(asked, found, strict=False))
    if journal is not None:
        said = {at: {key: value for key, value in vars(it).items() if key != "item"} for at, it in fresh.items()}
        journal.write(render_verdict(episodes[at].place, episodes[at].member, said[at]) for at in said)
    judged |= fresh
    return [judged.get(place) or result_of(one, items[place]) for place, one in enumerate(episodes)]


def gather_groups(
    prompts: Sequence[EncodedPrompt], episodes: Sequence[Episode], results: Sequence[RewardResult]
) -> list[Group]:
    """Groups in the order of the prompts, of episodes in order of place and member."""
    found = [Group(prompt, [], []) for prompt in prompts]
    for episode, result in zip(episodes, results, strict=True):
        group = found[episode.place]
        found[episode.place] = replace(
            group, completions=[*group.completions, episode.completion()], results=[*group.results, result]
        )
    return found


def row_of(prompt: EncodedPrompt) -> Row:
    return Row(
        index=prompt.index,
        prompt=prompt.text,
        answer=prompt.answer,
        messages=prompt.messages,
        info=prompt.info,
        source=prompt.source,
    )


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
