"""The state of one episode, independent of the order in which episodes are sampled."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.data.chat import as_messages
from slurm_rl.data.groups import Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.envs.steps import Answer, Outcome, digest_step
from slurm_rl.envs.worker import Call, Snapshot
from slurm_rl.errors import DataError
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import MOST_NAMES, describe_error
from slurm_rl.rollout.conversation_tree import BranchBuilder, extend, join_branches
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.turn_log_format import History, TurnKey, render_outcome, render_row
from slurm_rl.rollout.turn_log_format import Row as LogRow


@dataclass(frozen=True)
class Limits:
    """Limits of an episode."""

    max_turns: int
    turn_tokens: int
    """Longest reply in tokens."""
    max_tokens: int
    """Replies and observations together, after the row's prompt."""
    max_prompt_tokens: int = 0
    """Added to `max_tokens` for a conversation that starts with its own context."""

    @classmethod
    def of(cls, config: EnvironmentConfig, max_tokens: int, max_prompt_tokens: int) -> Limits:
        assert config.turn_tokens is not None, "the config was checked"
        return cls(config.max_turns, config.turn_tokens, max_tokens, max_prompt_tokens)

    def room(self, branch: BranchBuilder, num_new: int, *, is_first: bool) -> int:
        """Return the tokens left in a conversation after `num_new` more."""
        if is_first:
            return self.max_tokens - len(branch.token_ids) - num_new
        return self.max_prompt_tokens + self.max_tokens - len(branch.context) - len(branch.token_ids) - num_new


@dataclass(slots=True)
class Episode:
    """One episode as it grows."""

    index: int
    """Index of the prompt in the batch."""
    member: int
    """Index of the episode in its group."""
    prompt: EncodedPrompt
    seed: int
    """Seed of the batch."""
    branches: list[BranchBuilder] = field(default_factory=list)
    """Conversations in the order of their start; most episodes have one."""
    replies: list[Reply] = field(default_factory=list)
    """All replies in order of time, of all agents."""
    scores: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None
    ended: bool = False
    truncated: bool = False
    """A limit in turns or tokens ended it."""
    digests: list[int] = field(default_factory=list)
    """Digest of each step."""
    snapshot: Snapshot | None = None
    """Newest snapshot of the environment."""
    history: History | None = None
    """Turns in the log; None once a sampled reply differs from it."""
    checksum: int = 0
    """Checksum of all tokens after the prompt, in order of time."""
    newest: Response | None = None
    """Newest of `replies`."""
    name: str = field(init=False)
    """Unique among all episodes of the run."""
    branch: BranchBuilder = field(init=False)
    """The conversation that continues."""
    turn: TurnKey = field(init=False)
    """Newest turn, once there is one."""
    reset: tuple[Row, int] = field(init=False)
    """Row and seed that the environment starts with."""

    def __post_init__(self) -> None:
        self.name = f"{self.seed}.{self.index}.{self.member}"
        self.branch = BranchBuilder(self.prompt.packed, messages=self.prompt.messages or [])
        self.branches.append(self.branch)
        self.reset = row_of(self.prompt), derive_seed(self.seed, "environment", self.index)

    @property
    def next_seed(self) -> int:
        """Seed of the next reply. The first one equals the seed that vLLM gives to this member of the group."""
        if not self.replies:
            return derive_seed(self.seed, self.index) + self.member
        return derive_seed(self.seed, self.index, self.member, len(self.replies))

    def next_prompt(self) -> EncodedPrompt:
        """Return the prompt of the next reply."""
        return replace(self.prompt, token_ids=self.branch.prompt.tolist())

    def add_reply(self, reply: Response) -> None:
        """Append a sampled reply."""
        turn = len(self.replies)
        self.turn = (self.index, self.member, turn)
        self.branch.add(reply)
        self.newest = reply
        self.checksum = zlib.crc32(reply.token_ids, self.checksum)
        # The checksum makes the id unique per reply: an idempotent tool must not mistake another reply for this one.
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
        logged = self.history.replies[turn:] if self.history is not None else ()
        if not logged or logged[0].token_ids != reply.token_ids:
            self.history = None

    def next_call(self) -> Call:
        """Return the environment's next call. It shares this episode's lists, which stay unchanged until the answer."""
        row, seed = self.reset
        return Call(
            episode=self.name,
            row=row,
            seed=seed,
            replies=self.replies,
            expected=self.digests,
            snapshot=self.snapshot,
        )

    def recall(self) -> Answer | None:
        """Return the logged answer to the newest reply."""
        history, turn = self.history, len(self.replies) - 1
        if history is None or turn >= len(history.outcomes):
            return None
        snapshot = history.snapshot
        is_of_turn = snapshot is not None and snapshot.num_replies == turn + 1
        data = snapshot.data if snapshot is not None and is_of_turn else None
        return Answer(self.name, history.outcomes[turn], data)

    def add_answer(self, answer: Answer, render: TurnRenderer, limits: Limits) -> None:
        """Append the environment's answer to the newest reply."""
        assert answer.outcome is not None
        self.snapshot = None if answer.snapshot is None else Snapshot(len(self.replies), answer.snapshot)
        self.add_step(answer.outcome, render, limits)

    def fail(self, failure: Failure) -> None:
        self.failure, self.ended = failure, True

    def add_step(self, outcome: Outcome, render: TurnRenderer, limits: Limits) -> None:
        """Append the outcome of the newest reply: the end of the episode, or the next observation."""
        if isinstance(outcome, Failure):
            self.fail(outcome)
            return
        self.digests.append(digest_step(outcome))
        observation = outcome.observation
        turn = self.branch.turns[-1]
        turn.observation = observation if isinstance(observation, str) else _as_text(observation)
        turn.reward, turn.calls = outcome.reward, outcome.calls
        self.scores |= outcome.scores
        try:
            if len(self.scores) > MOST_NAMES:
                raise DataError(f"an episode has at most {MOST_NAMES} names of scores", seen=len(self.scores))
            self._add_rewards(outcome.rewards)
            if outcome.done:
                self.ended = True
            else:
                self._read(outcome, render, limits)
        except Exception as error:  # a template or tokenizer that rejects the observation, or an invalid step
            self.fail(Failure("bad score", f"its step cannot be taken: {describe_error(error)}"))

    def _add_rewards(self, rewards: Mapping[str, float]) -> None:
        """Add each agent's reward to its newest turn."""
        for agent, reward in rewards.items():
            branch = next((it for it in reversed(self.branches) if it.agent == agent and it.turns), None)
            if branch is None:
                raise DataError("Step.rewards must name agents that have replied", seen=repr(agent))
            branch.turns[-1] = replace(branch.turns[-1], reward=(branch.turns[-1].reward or 0.0) + reward)

    def _read(self, step: Step, render: TurnRenderer, limits: Limits) -> None:
        """Append the observation for the next agent; end the episode if no reply would fit after it."""
        agent = self.branch.agent if step.agent is None else step.agent
        # An agent continues its newest conversation.
        others = (branch for branch in reversed(self.branches) if branch.agent == agent)
        existing = self.branch if agent == self.branch.agent else next(others, None)
        if existing is None or step.begins:
            context = array("i", render.begin(step.observation))
            if not context:
                raise DataError("a conversation must begin with at least one token", seen="0 tokens")
            branch, new = BranchBuilder(context, agent, messages=as_messages(step.observation)), array("i")
        else:
            branch, suffix = extend(existing, step.observation, render)
            new = array("i", suffix)
        is_first = branch is self.branches[0]
        if self.prompt.images and not is_first:
            raise DataError("rows with images have one conversation per episode", seen=f"another, of {agent!r}")
        room = limits.room(branch, len(new), is_first=is_first)
        if len(self.replies) >= limits.max_turns or room < limits.turn_tokens:
            self.ended = self.truncated = True
            return
        if branch is not existing:
            self.branches.append(branch)
            self.checksum = zlib.crc32(branch.context, self.checksum)
        branch.token_ids += new
        self.checksum = zlib.crc32(new, self.checksum)
        self.branch = branch

    @property
    def reward(self) -> float | None:
        """Sum of the rewards of all turns and agents; None if no turn had any."""
        rewards = [turn.reward for branch in self.branches for turn in branch.turns if turn.reward is not None]
        return sum(rewards) if rewards else None

    def completion(self) -> Trajectory:
        return join_branches(self.branches, self.prompt.packed, self.last_text, self.truncated)

    @property
    def last_text(self) -> str:
        """Text of the last reply; "" if the episode failed before it."""
        return self.replies[-1].text if self.replies else ""


def log_reply(episode: Episode) -> bytes:
    """Return the log line of the newest reply."""
    assert episode.newest is not None
    return render_row(LogRow(*episode.turn, reply=episode.newest))


def log_answer(episode: Episode, answer: Answer) -> bytes:
    """Return the log line of the answer to the newest reply."""
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
