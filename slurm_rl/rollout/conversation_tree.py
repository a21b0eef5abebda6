"""The conversations of an episode as tokens; each becomes one training sequence. Pure.

    branch ""       the row's prompt, reply, observation, reply ...     the only one in most episodes
    branch "black"  its own context, reply, observation, reply ...      another agent, or a cut or rewritten dialogue

Several branches are concatenated into one trajectory. Each sampled token is in exactly one of them; contexts are read
but not trained on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.data.chat import as_messages
from slurm_rl.data.groups import Branch, Details, Trajectory, Turn
from slurm_rl.data.prompts import Message
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.environment import Observation
from slurm_rl.rollout.response import Response


@dataclass(slots=True)
class BranchBuilder:
    """One conversation as it grows; tokens are int32, logprobs float64."""

    context: array[int]
    """Tokens before the first reply."""
    agent: str = ""
    """Name of the agent that replies."""
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    """Tokens after the context: replies and observations."""
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    """Logprob of each reply token."""
    versions: array[int] = field(default_factory=lambda: array("i"))
    """Weight version of each reply token."""
    turns: list[Turn] = field(default_factory=list)
    """Turns, with positions in `token_ids`."""
    messages: list[Message] = field(default_factory=list)
    """The dialogue so far, if the template renders all of it before each reply."""

    @property
    def prompt(self) -> array[int]:
        """The prompt of the next reply."""
        return self.context + self.token_ids

    def add(self, reply: Response) -> None:
        """Append a sampled reply."""
        start = len(self.token_ids)
        self.token_ids.frombytes(reply.token_ids)
        self.logprobs.frombytes(reply.logprobs)
        self.versions += reply.versions()
        self.turns.append(Turn(start, len(self.token_ids), reply.text, agent=self.agent))


def extend(
    branch: BranchBuilder, observation: Observation, render: TurnRenderer
) -> tuple[BranchBuilder, Sequence[int]]:
    """Return the branch that continues after its newest reply, and the tokens of the observation.

    If the template renders the whole dialogue (env.context=rerendered) and the result does not start with the tokens so
    far, a new branch without replies continues.
    """
    if not render.rerenders:
        return branch, render.render(observation, branch.token_ids[-1] if branch.token_ids else None)
    reply: Message = {"role": "assistant", "content": branch.turns[-1].reply}
    messages = [*branch.messages, reply, *as_messages(observation)]
    rendered = render.begin(messages)
    suffix = find_suffix(branch.prompt, rendered)
    if suffix is None:
        return BranchBuilder(array("i", rendered), branch.agent, messages=messages), []
    branch.messages = messages
    return branch, suffix


def find_suffix(prefix: Sequence[int], rendered: Sequence[int]) -> list[int] | None:
    """Return the tokens of `rendered` after `prefix`; None if it does not start with it.

    >>> find_suffix([1, 2], [1, 2, 3]), find_suffix([1, 2], [1, 3])
    ([3], None)
    """
    matches = len(rendered) >= len(prefix) and list(rendered[: len(prefix)]) == list(prefix)
    return list(rendered[len(prefix) :]) if matches else None


def join_branches(branches: Sequence[BranchBuilder], prompt: array[int], text: str, truncated: bool) -> Trajectory:
    """Concatenate branches into one trajectory, agent by agent.

    Args:
        prompt: tokens of the row's prompt. A single branch with this context needs no `Branch`.
        text: last reply.
    """
    agents = list(dict.fromkeys(branch.agent for branch in branches))
    used = sorted((branch for branch in branches if branch.turns), key=lambda branch: agents.index(branch.agent))
    token_ids, logprobs, versions = array("i"), array("d"), array("i")
    turns, joined = list[Turn](), list[Branch]()
    for branch in used:
        first, end = len(token_ids), branch.turns[-1].end
        token_ids += branch.token_ids[:end] if len(used) > 1 else branch.token_ids
        logprobs += branch.logprobs
        versions += branch.versions
        shifted = [replace(it, start=it.start + first, end=it.end + first) for it in branch.turns]
        turns += shifted if first else branch.turns
        if len(used) > 1 or branch.context != prompt:
            joined.append(Branch(branch.context.tolist(), first, len(token_ids)))
    is_mixed = versions != versions[:1] * len(versions)
    return Trajectory(
        token_ids.tolist(),
        logprobs.tolist(),
        text,
        truncated,
        versions[0] if versions else -1,
        Details(turns, joined, versions.tolist() if is_mixed else []),
    )
