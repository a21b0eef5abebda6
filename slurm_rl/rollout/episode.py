"""An episode as it grows, and what is made of those that have ended; in whatever order they are sampled."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.data.chat import as_messages
from slurm_rl.data.groups import Completion, Group
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.answers import Answer
from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.envs.steps import Outcome, digest_step
from slurm_rl.envs.worker import Call, Snapshot
from slurm_rl.errors import DataError
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import MOST_NAMES, describe_error
from slurm_rl.rollout.journal import BatchJournal
from slurm_rl.rollout.journal_lines import History, TurnPlace, render_outcome, render_reply
from slurm_rl.rollout.packed_reply import PackedReply
from slurm_rl.rollout.paths import Path, go_on, join_paths


@dataclass(slots=True)
class Episode:
    """One episode as it grows."""

    place: int
    """Of its prompt in the batch."""
    member: int
    """Of its group."""
    prompt: EncodedPrompt
    seed: int
    """Of its batch."""
    paths: list[Path] = field(default_factory=list)
    """Its conversations, as they began; most episodes have one."""
    replies: list[Reply] = field(default_factory=list)
    """In the order of time, whoever said them."""
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
    checksum: int = 0
    """Of all tokens behind the prompt, in the order of time."""
    newest: PackedReply | None = None
    """Of `replies`."""
    name: str = field(init=False)
    """Names it among all episodes of the run."""
    path: Path = field(init=False)
    """Of `paths`, the one that goes on."""
    turn: TurnPlace = field(init=False)
    """The newest, once there is one."""
    world: tuple[Row, int] = field(init=False)
    """What its world begins with: the row, and a seed."""

    def __post_init__(self) -> None:
        self.name = f"{self.seed}.{self.place}.{self.member}"
        self.path = Path(self.prompt.packed, messages=self.prompt.messages or [])
        self.paths.append(self.path)
        self.world = row_of(self.prompt), derive_seed(self.seed, "environment", self.place)

    @property
    def next_seed(self) -> int:
        """Of the next reply; of the first as vLLM seeds the completions of one prompt."""
        if not self.replies:
            return derive_seed(self.seed, self.place) + self.member
        return derive_seed(self.seed, self.place, self.member, len(self.replies))

    def next_prompt(self) -> EncodedPrompt:
        """What the next reply follows."""
        return replace(self.prompt, token_ids=self.path.whole.tolist())

    def add_reply(self, reply: PackedReply) -> None:
        """Append what was sampled."""
        turn = len(self.replies)
        self.turn = TurnPlace(self.place, self.member, turn)
        self.path.add(reply)
        self.newest = reply
        self.checksum = zlib.crc32(reply.token_ids, self.checksum)
        # With its tokens: who does an effect once a name must not take another reply for one that it has had.
        call_id = f"{self.name}.{turn}.{self.checksum:08x}"
        self.replies.append(
            Reply(
                text=reply.text,
                cut=reply.truncated,
                content=reply.content,
                calls=reply.calls,
                call_id=call_id,
            )
        )
        known = self.history.replies[turn:] if self.history is not None else ()
        if not known or known[0].token_ids != reply.token_ids:
            self.history = None

    def next_call(self) -> Call:
        """Its lists are this episode's own, which do not change before the call is answered."""
        row, seed = self.world
        return Call(
            episode=self.name,
            row=row,
            seed=seed,
            replies=self.replies,
            expected=self.digests,
            snapshot=self.snapshot,
        )

    def recall(self) -> Answer | None:
        """What the journal knows to have come of the newest reply."""
        history, turn = self.history, len(self.replies) - 1
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

    def fail(self, failure: Failure) -> None:
        self.failure, self.ended = failure, True

    def add_step(self, outcome: Outcome, render: TurnRenderer, limits: Limits) -> None:
        """Take what came of the newest reply: the end of the episode, or what the policy reads next."""
        if isinstance(outcome, Failure):
            self.fail(outcome)
            return
        self.digests.append(digest_step(outcome))
        said = outcome.observation if isinstance(outcome.observation, str) else _as_text(outcome.observation)
        turn = self.path.turns[-1]
        turn.observation, turn.reward, turn.calls = said, outcome.reward, outcome.calls
        self.scores |= outcome.scores
        try:
            if len(self.scores) > MOST_NAMES:
                raise DataError(f"an episode has at most {MOST_NAMES} names of scores", seen=len(self.scores))
            self._give(outcome.rewards)
            if outcome.done:
                self.ended = True
            else:
                self._read(outcome, render, limits)
        except Exception as error:  # of a template or a tokenizer that does not take it, or of a step that cannot be
            self.fail(Failure("bad score", f"its step cannot be taken: {describe_error(error)}"))

    def _give(self, rewards: Mapping[str, float]) -> None:
        """To the newest turn of each agent."""
        for agent, reward in rewards.items():
            path = next((path for path in reversed(self.paths) if path.agent == agent and path.turns), None)
            if path is None:
                raise DataError("Step.rewards are of agents that have replied", seen=repr(agent))
            path.turns[-1] = replace(path.turns[-1], reward=(path.turns[-1].reward or 0.0) + reward)

    def _read(self, step: Step, render: TurnRenderer, limits: Limits) -> None:
        """What who replies next reads; or the end, where no reply would fit behind it."""
        agent = self.path.agent if step.agent is None else step.agent
        # Of one agent the newest is the one that goes on.
        others = (path for path in reversed(self.paths) if path.agent == agent)
        known = self.path if agent == self.path.agent else next(others, None)
        if known is None or step.begins:
            context = array("i", render.begin(step.observation))
            if not context:
                raise DataError("a conversation must begin with something that the policy reads", seen="0 tokens")
            path, new = Path(context, agent, messages=as_messages(step.observation)), array("i")
        else:
            path, follows = go_on(known, step.observation, render)
            new = array("i", follows)
        is_first = path is self.paths[0]
        if self.prompt.images and not is_first:
            raise DataError("rows with images have one conversation an episode", seen=f"another, of {agent!r}")
        room = limits.room(path, len(new), is_first=is_first)
        if len(self.replies) >= limits.max_turns or room < limits.turn_tokens:
            self.ended = self.truncated = True
            return
        if path is not known:
            self.paths.append(path)
            self.checksum = zlib.crc32(path.context, self.checksum)
        path.token_ids += new
        self.checksum = zlib.crc32(new, self.checksum)
        self.path = path

    @property
    def reward(self) -> float | None:
        """What its turns add up to, of all agents; None where no turn had any."""
        rewards = [turn.reward for path in self.paths for turn in path.turns if turn.reward is not None]
        return sum(rewards) if rewards else None

    def completion(self) -> Completion:
        return join_paths(self.paths, self.prompt.packed, self.last_text, self.truncated)

    @property
    def last_text(self) -> str:
        """Text of the last reply; "" of an episode that failed before it had one."""
        return self.replies[-1].text if self.replies else ""


@dataclass(frozen=True)
class Limits:
    """How far an episode may go."""

    max_turns: int
    turn_tokens: int
    """Longest reply."""
    max_tokens: int
    """Replies and observations together, behind the row's prompt."""
    max_prompt_tokens: int = 0
    """With `max_tokens`, of a conversation that began with something else than the row's prompt."""

    @classmethod
    def of(cls, config: EnvironmentConfig, max_tokens: int, max_prompt_tokens: int) -> Limits:
        assert config.turn_tokens is not None, "the config was checked"
        return cls(config.max_turns, config.turn_tokens, max_tokens, max_prompt_tokens)

    def room(self, path: Path, num_new: int, *, is_first: bool) -> int:
        """Tokens that are left in a conversation behind so many new ones."""
        if is_first:
            return self.max_tokens - len(path.token_ids) - num_new
        return self.max_prompt_tokens + self.max_tokens - len(path.context) - len(path.token_ids) - num_new


def begin_episodes(groups: Sequence[Group], seed: int, journal: BatchJournal | None = None) -> list[Episode]:
    """One a completion of first replies, in order of groups, then completions."""
    episodes = []
    for place, group in enumerate(groups):
        for member, completion in enumerate(group.completions):
            known = journal.histories.get((place, member)) if journal is not None else None
            episodes.append(Episode(place, member, group.prompt, seed, history=known))
            episodes[-1].add_reply(PackedReply.of(completion))
    return episodes


def note_reply(episode: Episode) -> bytes:
    """A line of the journal: its newest reply."""
    assert episode.newest is not None
    return render_reply(episode.turn, episode.newest)


def note_answer(episode: Episode, answer: Answer) -> bytes:
    """A line of the journal: what came of its newest reply."""
    assert answer.outcome is not None
    return render_outcome(episode.turn, answer.outcome, answer.snapshot)


def row_of(prompt: EncodedPrompt) -> Row:
    return Row(
        index=prompt.index,
        prompt=prompt.text,
        answer=prompt.answer,
        messages=prompt.messages,
        info=prompt.info,
        source=prompt.source,
    )


def _as_text(messages: Sequence[dict[str, object]]) -> str:
    return "\n".join(str(message["content"]) for message in messages)
