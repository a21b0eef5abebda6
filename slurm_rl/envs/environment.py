"""Base class of environments. An environment is a class in the user's file; each episode has its own instance.

    class Guess(Environment):                       # env.name=guess.py:Guess
        def reset(self, row, seed):
            self.secret = row.answer

        def step(self, reply):
            if reply.text == self.secret:
                return Step(reward=1.0, done=True)
            return Step("higher" if int(reply.text) < int(self.secret) else "lower")

The policy reads the row's prompt and replies; `step` receives the reply and returns the next observation. The reward
of an episode is the sum over its turns; without any, `reward` of the config scores the last reply. Both methods may
be `async def` and then run concurrently within a process.

Environments run in separate processes (`env.num_workers`). An exception, a step longer than `env.timeout_s`, a dead
process or an invalid Step fails the episode: it is counted by cause, gets no number and is not trained on. A bad reply
of the policy is not a failure: answer it with an observation.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

ToolError: TypeAlias = Literal["malformed", "cut", "thinking", "unknown", "arguments", "exception", "late"]
"""malformed: not in the model's syntax. cut: ended by the length limit. thinking: inside the thinking, so not executed.
unknown: no such tool. arguments: violate its schema. exception: the tool raised. late: over env.tool_timeout_s.
All are reported to the policy; none fails the episode."""

Observation = str | list[dict[str, Any]]
"""Text, which with a chat template is a user message; or messages."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The row of the data that an episode is about."""

    index: int
    prompt: str
    """Rendered prompt."""
    answer: str
    messages: list[dict[str, Any]] | None = None
    """Messages of the prompt; None for plain text."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """The columns of data.info_keys, or all that are neither prompt, answer nor images."""
    source: str = ""
    """Of data.sources, where there are several."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call and its result."""

    name: str
    """"" of one that could not be read."""
    arguments: str
    """JSON text, or the raw text of an unreadable call."""
    result: str = ""
    """Result text for the policy."""
    error: ToolError | None = None
    """Why there is no result of the tool."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Reply of the policy in one turn."""

    text: str
    """Text without special tokens and stop strings."""
    cut: bool = False
    """The length limit ended the reply."""
    content: str = ""
    """With tools: the text without thinking and calls."""
    calls: tuple[ToolCall, ...] = ()
    """With tools: in order, those that could not be read among them."""
    call_id: str = ""
    """Names this turn of this episode of the run, the same when a step is repeated: for effects outside, once each."""


@dataclass(frozen=True)
class Step:
    """Result of a reply."""

    observation: Observation = ""
    """Next observation; not read if the step ends the episode."""
    reward: float | None = None
    """Reward of this turn, or None."""
    done: bool = False
    scores: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the metrics, by name; of several steps the last of a name counts."""
    calls: tuple[ToolCall, ...] = ()
    """Results of the reply's tool calls, for transcripts and metrics."""
    agent: str | None = None
    """Agent that reads the observation and replies next; None: the agent of the last reply. "" is the agent that read
    the row's prompt; a new name begins a conversation with only this observation."""
    begins: bool = False
    """Drop that agent's earlier context: it continues from this observation."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards by agent, for the newest turn of each, in addition to `reward` of the replying agent."""


class Environment:
    """One world, for one episode."""

    resume: ClassVar[Literal["snapshot", "replay", "restart"]] = "replay"
    """How an instance is restored after its process ended. `replay`: replay the replies, which must give the same
    steps. `snapshot`: the result of `snapshot` after the newest step. `restart`: not at all; the episode fails, or in
    a resumed run starts again."""
    version: ClassVar[str] = ""
    """Version that must match when a resumed run continues an episode; "": hash of the file."""

    def reset(self, row: Row, seed: int) -> Awaitable[None] | None:
        """Begin. All episodes of a prompt in a step get the same seed."""
        return None

    def step(self, reply: Reply) -> Step | Awaitable[Step]:
        """Take a reply."""
        raise NotImplementedError

    def snapshot(self) -> bytes:
        """Return the state for `restore`; called after each step with resume="snapshot"."""
        raise NotImplementedError

    def restore(self, row: Row, data: bytes) -> None:
        """Restore the state returned by `snapshot()`; called instead of `reset`."""
        raise NotImplementedError
