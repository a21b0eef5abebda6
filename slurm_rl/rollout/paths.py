"""The conversations of an episode as tokens, each of which becomes one sequence to train on. Pure.

    path ""       the row's prompt, reply, observation, reply ...     most episodes have this one alone
    path "black"  what it read first, reply, observation, reply ...   another agent, or the same after a cut

Where paths are several they go end to end into one completion, as branches: what was sampled is in one of them, once,
and what a path began with is read alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.data.chat import as_messages
from slurm_rl.data.groups import Branch, Completion, Turn
from slurm_rl.data.prompts import Message
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.environment import Observation
from slurm_rl.rollout.packed_reply import PackedReply


@dataclass(slots=True)
class Path:
    """One conversation; its numbers are int32 and float64."""

    context: array[int]
    """Token ids that were read before its first reply."""
    agent: str = ""
    """Who reads and replies in it."""
    token_ids: array[int] = field(default_factory=lambda: array("i"))
    """Behind the context: replies and what was read between them."""
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    """Of the tokens of the replies, as `versions`."""
    versions: array[int] = field(default_factory=lambda: array("i"))
    """Of the weights behind each."""
    turns: list[Turn] = field(default_factory=list)
    """With places in `token_ids`."""
    messages: list[Message] = field(default_factory=list)
    """The dialogue so far, where the template writes all of it before each reply."""

    @property
    def whole(self) -> array[int]:
        """All that the next reply follows."""
        return self.context + self.token_ids

    def add(self, reply: PackedReply) -> None:
        """Append what was sampled."""
        start = len(self.token_ids)
        self.token_ids.frombytes(reply.token_ids)
        self.logprobs.frombytes(reply.logprobs)
        self.versions += reply.versions()
        self.turns.append(Turn(start, len(self.token_ids), reply.text, agent=self.agent))


def go_on(path: Path, observation: Observation, render: TurnRenderer) -> tuple[Path, Sequence[int]]:
    """The path that goes on behind its newest reply, and what is read there.

    Where the template writes the dialogue anew (env.context=rerendered) and it does not begin with what was read and
    said so far, that is another path, of which nothing was sampled yet.
    """
    if not render.rerenders:
        return path, render.render(observation, path.token_ids[-1] if path.token_ids else None)
    said: Message = {"role": "assistant", "content": path.turns[-1].reply}
    messages = [*path.messages, said, *as_messages(observation)]
    whole = render.begin(messages)
    follows = find_new(path.whole, whole)
    if follows is None:
        return Path(array("i", whole), path.agent, messages=messages), []
    path.messages = messages
    return path, follows


def find_new(known: Sequence[int], rendered: Sequence[int]) -> list[int] | None:
    """What a dialogue has behind the tokens that are known; None where it does not begin with them.

    >>> find_new([1, 2], [1, 2, 3]), find_new([1, 2], [1, 3])
    ([3], None)
    """
    same = len(rendered) >= len(known) and list(rendered[: len(known)]) == list(known)
    return list(rendered[len(known) :]) if same else None


def join_paths(paths: Sequence[Path], prompt: array[int], text: str, truncated: bool) -> Completion:
    """One completion of them: agent by agent, and those of one agent in their order.

    Args:
        prompt: token ids of the row. One path alone behind these has no branches.
        text: of the last reply.
    """
    agents = list(dict.fromkeys(path.agent for path in paths))
    said = sorted((path for path in paths if path.turns), key=lambda path: agents.index(path.agent))
    token_ids, logprobs, versions = array("i"), array("d"), array("i")
    turns, branches = list[Turn](), list[Branch]()
    for path in said:
        first, end = len(token_ids), path.turns[-1].end
        token_ids += path.token_ids[:end] if len(said) > 1 else path.token_ids
        logprobs += path.logprobs
        versions += path.versions
        turns += [replace(it, start=it.start + first, end=it.end + first) for it in path.turns] if first else path.turns
        if len(said) > 1 or path.context != prompt:
            branches.append(Branch(path.context.tolist(), first, len(token_ids)))
    is_mixed = versions != versions[:1] * len(versions)
    return Completion(
        token_ids.tolist(),
        logprobs.tolist(),
        text,
        truncated,
        versions[0] if versions else -1,
        versions.tolist() if is_mixed else [],
        turns=turns,
        branches=branches,
    )
