"""The nouns of the GRPO loop: prompt > completion > group > batch.

Worked example, group_size 2: the prompt `3+4=` gets the completions `7` (reward 1) and `8` (reward 0);
group_norm makes their advantages +0.71 and -0.71.
"""

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
    """What the loop draws from."""

    train: list[EncodedPrompt]
    held_out: list[EncodedPrompt]
    answers: list[list[int]]
    """Token ids of each training row's reference answer; empty without a warm-up."""
    max_images: int | None = None
    """Most images of one prompt; None for a text model."""
    tools: ToolSyntax | None = None
    """How the model calls the tools that it was told of; None where it has none."""
    schemas: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Of the tools of each source."""
    sets: dict[str, list[EncodedPrompt]] = field(default_factory=dict)
    """Of the evaluation, by name."""

    @property
    def all_rows(self) -> list[EncodedPrompt]:
        """To train on, held out, and of the sets."""
        return [*self.train, *self.held_out, *(prompt for one in self.sets.values() for prompt in one)]


@dataclass
class Turn:
    """A reply in an episode, and what came of it. It changes while its episode is under way, and never after."""

    start: int
    """Place of its first token in `Completion.token_ids`."""
    end: int
    """Place behind its last."""
    reply: str
    """Decoded as `Completion.text` is."""
    observation: str = ""
    """What the policy read next, or what the environment said at the end."""
    reward: float | None = None
    """Of this turn; None where the environment gave none."""
    calls: tuple[ToolCall, ...] = ()
    """Of tools, with what came of them."""
    agent: str = ""
    """Who replied, of several over one model; "" is who read the row's prompt."""


@dataclass(frozen=True)
class Branch:
    """One sequence of an episode: what was read before its first reply, then its part of `Completion.token_ids`.

    A program that rewrites its dialogue, or asks twice from one place, makes several, and so do several agents and an
    environment that cuts what was said. What two of them share is in the `token_ids` of the first alone, and in the
    context of the other, so that it is trained on once.
    """

    context: list[int]
    """Token ids, at least one, of which none is trained on."""
    start: int
    """Place of its first token in `Completion.token_ids`, a sampled one."""
    end: int
    """Place behind its last."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer, or all that followed the prompt in an episode of several turns."""

    token_ids: list[int]
    """Sampled tokens; the last is the end-of-text token or what else stopped it, unless the length limit cut it. Of an
    episode also those that the environment said, between the turns."""
    logprobs: list[float]
    """Logprob of each sampled token under the distribution that sampled it: of those weights, at that temperature, with
    penalties and cut as SamplingSpec says."""
    text: str
    """Decoded without special tokens, and without the string or token that stopped it; of an episode its last reply."""
    truncated: bool
    """The length limit cut it; of an episode, a limit in turns or tokens."""
    weight_version: int
    """Version of the engine's weights: the number of GRPO steps they had seen. Of the first token, where they changed
    on the way."""
    token_versions: list[int] = field(default_factory=list)
    """Of each token, where new weights came while it was sampled (`rollout.inflight_weight_updates`); else empty."""
    turns: list[Turn] = field(default_factory=list)
    """Of an episode of several turns; else empty, and all tokens were sampled."""
    branches: list[Branch] = field(default_factory=list)
    """Of an episode with prompts of its own, all of `token_ids` in order; else empty, and they follow the group's."""
    content: str = ""
    """Of a turn with tools (env.tools): what is neither thinking nor a call."""
    calls: tuple[ToolCall, ...] = ()
    """Of a turn with tools, as the engine read them."""

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled, which alone are trained on."""
        return len(self.logprobs)

    @property
    def num_sequences(self) -> int:
        """Sequences that the policy reads of it."""
        return max(len(self.branches), 1)

    def sampled_places(self) -> list[int] | None:
        """Places of these in `token_ids`; None: all of them."""
        return [place for turn in self.turns for place in range(turn.start, turn.end)] or None

    def versions(self) -> list[int]:
        """Version of the weights that sampled each token."""
        return self.token_versions or [self.weight_version] * self.num_sampled


@dataclass(frozen=True)
class Group:
    """A prompt with its completions and their scores."""

    prompt: EncodedPrompt
    completions: Sequence[Completion]
    results: Sequence[RewardResult] = ()
    """One a completion; empty until scored."""


@dataclass(frozen=True)
class SamplingSpec:
    """How an engine samples."""

    num_completions: int
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    """Each prompt's random numbers follow from this and its place (`seed_prompts`), whatever engine samples it."""
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    batch: str = ""
    """Names what is sampled, such as `rollout-12`: the purpose and the step."""


def with_calls(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a turn, a completion or a step, with calls of tools in place of what `asdict` made of them."""

    from slurm_rl.envs.environment import ToolCall

    return {**tree, "calls": tuple(ToolCall(**call) for call in tree.get("calls", ()))}
