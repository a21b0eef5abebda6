"""Data types of the GRPO loop: prompt, trajectory, group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurm_rl.data.tokenize import EncodedPrompt
    from slurm_rl.data.tool_syntax import ToolSyntax
    from slurm_rl.envs.environment import ToolCall
    from slurm_rl.rewards.results import RewardResult


@dataclass
class Prompts:
    train: list[EncodedPrompt]
    held_out: list[EncodedPrompt]
    answers: list[list[int]]
    """Token ids of each training row's reference answer; empty without a warm-up."""
    max_images: int | None = None
    """Largest number of images in one prompt; None for a text model."""
    tools: ToolSyntax | None = None
    """Format of the model's tool calls; None without tools."""
    schemas: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    sets: dict[str, list[EncodedPrompt]] = field(default_factory=dict)

    @property
    def all_rows(self) -> list[EncodedPrompt]:
        """Training rows, held-out rows and the rows of all sets."""
        return [*self.train, *self.held_out, *(prompt for one in self.sets.values() for prompt in one)]


@dataclass
class Turn:
    """A reply in an episode and its result. It is mutable only during the episode."""

    start: int
    """Index of its first token in `Trajectory.token_ids`."""
    end: int
    reply: str
    """Text, decoded like `Trajectory.text`."""
    observation: str = ""
    """Next input of the policy, or the last message of the environment."""
    reward: float | None = None
    calls: tuple[ToolCall, ...] = ()
    agent: str = ""
    """Name of the agent, if several share the model; "" for the agent of the row's prompt."""


@dataclass(frozen=True)
class Branch:
    """One sequence of an episode: the context of its first reply, then its part of `Trajectory.token_ids`.

    An episode has several branches if a program rewrites its conversation, if it has several agents, or if the
    environment shortens the conversation. Shared tokens are trained on once, in the first branch.
    """

    context: list[int]
    """Token ids, at least one; none is trained on."""
    start: int
    """Index of its first token in `Trajectory.token_ids`; this token was sampled."""
    end: int


@dataclass(frozen=True)
class Details:
    """Parts of a trajectory that a plain single turn does not have."""

    turns: list[Turn] = field(default_factory=list)
    """Turns of an episode; empty for a single turn, in which all tokens were sampled."""
    branches: list[Branch] = field(default_factory=list)
    """Branches of an episode with its own prompts, covering `token_ids` in order; empty if they follow the
    group's prompt."""
    token_versions: list[int] = field(default_factory=list)
    """Weight version by sampled token, if weights changed during sampling (`rollout.inflight_weight_updates`)."""
    content: str = ""
    """In a turn with tools (env.tools): the text outside of thinking and calls."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls of a turn, as parsed by the engine."""


@dataclass(frozen=True)
class Trajectory:
    """One sampled answer, or all tokens after the prompt in an episode of several turns."""

    token_ids: list[int]
    """Sampled tokens. The last one is the end-of-text or stop token, unless the length limit was reached. In an episode
    also the environment's tokens between the turns."""
    logprobs: list[float]
    """Logprob of each sampled token under the distribution that sampled it: with the engine's weights and the
    temperature, penalties and truncation of SamplingSpec."""
    text: str
    """Text without special tokens and without the stop string or token; the last reply of an episode."""
    truncated: bool
    """Whether the length limit was reached; in an episode, the limit of turns or tokens."""
    weight_version: int
    """Version of the engine's weights at the first token: the number of GRPO steps of these weights."""
    details: Details | None = None
    """Turns, branches, tool calls and mixed weight versions; None for a plain single turn."""

    @property
    def turns(self) -> list[Turn]:
        return self.details.turns if self.details else []

    @property
    def branches(self) -> list[Branch]:
        return self.details.branches if self.details else []

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens; only these are trained on."""
        return len(self.logprobs)

    @property
    def num_sequences(self) -> int:
        return max(len(self.branches), 1)

    def sampled_places(self) -> Sequence[int]:
        """Return the indices of sampled tokens in `token_ids`."""
        if not self.turns:
            return range(len(self.token_ids))
        return [place for turn in self.turns for place in range(turn.start, turn.end)]

    def versions(self) -> list[int]:
        """Return the weight version of each sampled token."""
        mixed = self.details.token_versions if self.details else []
        return mixed or [self.weight_version] * self.num_sampled


@dataclass(frozen=True)
class Group:
    prompt: EncodedPrompt
    completions: Sequence[Trajectory]
    results: Sequence[RewardResult] = ()
    """One result per completion; empty before scoring."""


@dataclass(frozen=True)
class SamplingSpec:
    num_completions: int
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    """Seed of each prompt's random numbers, together with its index (`seed_prompts`); independent of the engine."""
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    batch: str = ""
    """Name of the batch, such as `rollout-12`: purpose and step."""


def with_calls(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a turn, details or step with `ToolCall` objects in place of their dicts."""

    from slurm_rl.envs.environment import ToolCall

    return {**tree, "calls": tuple(ToolCall(**call) for call in tree.get("calls", ()))}
