"""What an environment is: a class in the user's file, of which every episode has an instance of its own.

    class Guess(Environment):                       # env.name=guess.py:Guess
        def reset(self, row, seed):
            self.secret = row.answer

        def step(self, reply):
            if reply.text == self.secret:
                return Step(reward=1.0, done=True)
            return Step("higher" if int(reply.text) < int(self.secret) else "lower")

The policy reads the row's prompt first and replies; `step` gets the reply and says what the policy reads next. Rewards
of turns add up to the episode's; an episode without any is scored by `reward` of the config, by its last reply. Both
methods may be `async def`: those of one process then wait side by side.

An environment runs in a process of its own (`env.num_workers`), never in the trainer. An exception, a step over
`env.timeout_s`, a process that dies and nonsense in a Step cost the episode: it is counted by cause, no number is made
of it, and nothing is trained on it. A bad reply is none of these: say so to the policy in an observation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

ToolError: TypeAlias = Literal["malformed", "cut", "thinking", "unknown", "arguments", "exception", "late"]
"""malformed: not in the model's syntax. cut: the length limit came first. thinking: written in a thought, so not made.
unknown: no such tool. arguments: not as its schema says. exception: the tool raised. late: over env.tool_timeout_s.
All of them are told to the policy, and none is a failure of the episode."""

Observation = str | list[dict[str, Any]]
"""Text, which with a chat template is a user message; or messages."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The row of the data that an episode is about."""

    index: int
    prompt: str
    """What the policy read, rendered."""
    answer: str
    messages: list[dict[str, Any]] | None = None
    """What `prompt` was rendered of; None of plain text."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The columns of data.info_keys, or all that are neither prompt, answer nor images."""
    source: str = ""
    """Of data.sources, where there are several."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the policy wrote it, and what came of it."""

    name: str
    """"" of one that could not be read."""
    arguments: str
    """JSON text; of a call that could not be read, what was written."""
    result: str = ""
    """What the policy read of it."""
    error: ToolError | None = None
    """Why there is no result of the tool."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the policy said in one turn."""

    text: str
    """Without special tokens and without what stopped it."""
    cut: bool = False
    """Its length limit ended it, not the policy."""
    content: str = ""
    """With tools: of the text what is neither thinking nor a call."""
    calls: tuple[ToolCall, ...] = ()
    """With tools: in order, those that could not be read among them."""
    call_id: str = ""
    """Names this turn of this episode of the run, the same when a step is repeated: for effects outside, once each."""


@dataclass(frozen=True)
class Step:
    """What came of a reply."""

    observation: Observation = ""
    """What the policy reads next; of a step that ends the episode it is not read."""
    reward: float | None = None
    """Of this turn; None where there is nothing to say."""
    done: bool = False
    scores: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the metrics, by name; of several steps the last of a name counts."""
    calls: tuple[ToolCall, ...] = ()
    """What came of the reply's calls, for transcripts and metrics."""
    agent: str | None = None
    """Who reads the observation and replies next, where several play with one model; None: who replied last. "" is who
    read the row's prompt; another name, at its first time, begins a conversation that has this observation alone."""
    begins: bool = False
    """What that agent read and said before is cut: it goes on from this observation alone."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """By agent, each for its newest turn, beside `reward`, which is of who replied."""


class Environment:
    """One world, for one episode."""

    resume: ClassVar[Literal["snapshot", "replay", "restart"]] = "replay"
    """What brings back a world whose process is gone. `replay`: the same replies again, of which the same steps must
    come. `snapshot`: what `snapshot` returned after its newest step. `restart`: nothing does; its episode has failed,
    or in a resumed run begins anew."""
    version: ClassVar[str] = ""
    """Names what of this class must be the same where a resumed run goes on with an episode; "": its file's bytes."""

    def reset(self, row: Row, seed: int) -> Awaitable[None] | None:
        """Begin. All episodes of a prompt in a step get the same seed."""
        return None

    def step(self, reply: Reply) -> Step | Awaitable[Step]:
        """Take a reply."""
        raise NotImplementedError

    def snapshot(self) -> bytes:
        """All that `restore` needs; asked for after each step, with resume="snapshot"."""
        raise NotImplementedError

    def restore(self, row: Row, data: bytes) -> None:
        """Be, without `reset`, as the world was that said this of itself."""
        raise NotImplementedError
