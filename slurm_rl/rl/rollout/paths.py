"""The conversations of an episode as tokens, each of which becomes one sequence to train on. Pure.

    path ""       the row's prompt, reply, observation, reply ...     most episodes have this one alone
    path "black"  what it read first, reply, observation, reply ...   another agent, or the same after a cut

Where paths are several they go end to end into one completion, as branches: what was sampled is in one of them, once,
and what a path began with is read alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_rl.data.chat import as_messages
from slurm_rl.data.prompts import Message
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.endpoint.conversation import Sampled
from slurm_rl.envs.environment import Observation
from slurm_rl.rl.groups import Branch, Completion, Turn


@dataclass
class Path:
    """One conversation."""

    context: list[int]
    """Token ids that were read before its first reply."""
    agent: str = ""
    """Who reads and replies in it."""
    token_ids: list[int] = field(default_factory=list)
    """Behind the context: replies and what was read between them."""
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens of the replies, as `versions`."""
    versions: list[int] = field(default_factory=list)
    """Of the weights behind each."""
    turns: list[Turn] = field(default_factory=list)
    """With places in `token_ids`."""
    messages: list[Message] = field(default_factory=list)
    """The dialogue so far, where the template writes all of it before each reply."""

    @property
    def whole(self) -> list[int]:
        """All that the next reply follows."""
        return [*self.context, *self.token_ids]

    def add(self, reply: Sampled) -> None:
        """Append what was sampled."""
        start = len(self.token_ids)
        self.token_ids += reply.token_ids
        self.logprobs += reply.logprobs
        self.versions += reply.versions()
        self.turns.append(Turn(start, len(self.token_ids), reply.text, agent=self.agent))

    def newest(self) -> tuple[list[int], list[float], list[int]]:
        """Token ids, logprobs and versions of the newest reply."""
        turn = self.turns[-1]
        first = len(self.versions) - (turn.end - turn.start)
        return self.token_ids[turn.start : turn.end], self.logprobs[first:], self.versions[first:]


def go_on(path: Path, observation: Observation, render: TurnRenderer) -> tuple[Path, list[int]]:
    """The path that goes on behind its newest reply, and what is read there.

    Where the template writes the dialogue anew (env.history=rerendered) and it does not begin with what was read and
    said so far, that is another path, of which nothing was sampled yet.
    """
    if not render.rerenders:
        return path, render.render(observation, path.token_ids[-1] if path.token_ids else None)
    said: Message = {"role": "assistant", "content": path.turns[-1].reply}
    messages = [*path.messages, said, *as_messages(observation)]
    whole = render.begin(messages)
    follows = find_new(path.whole, whole)
    if follows is None:
        return Path(whole, path.agent, messages=messages), []
    path.messages = messages
    return path, follows


def find_new(known: Sequence[int], rendered: Sequence[int]) -> list[int] | None:
    """What a dialogue has behind the tokens that are known; None where it does not begin with them.

    >>> find_new([1, 2], [1, 2, 3]), find_new([1, 2], [1, 3])
    ([3], None)
    """
    same = len(rendered) >= len(known) and list(rendered[: len(known)]) == list(known)
    return list(rendered[len(known) :]) if same else None


def join_paths(paths: Sequence[Path], prompt: Sequence[int], text: str, truncated: bool) -> Completion:
    """One completion of them: agent by agent, and those of one agent in their order.

    Args:
        prompt: token ids of the row. One path alone behind these has no branches.
        text: of the last reply.
    """
    agents = list(dict.fromkeys(path.agent for path in paths))
    said = sorted((path for path in paths if path.turns), key=lambda path: agents.index(path.agent))
    token_ids, turns, branches = list[int](), list[Turn](), list[Branch]()
    for path in said:
        first, end = len(token_ids), path.turns[-1].end
        token_ids += path.token_ids[:end] if len(said) > 1 else path.token_ids
        turns += [_move(turn, first) for turn in path.turns] if first else path.turns
        branches.append(Branch(list(path.context), first, len(token_ids)))
    versions = [version for path in said for version in path.versions]
    is_plain = [branch.context for branch in branches] == [list(prompt)]
    return Completion(
        token_ids,
        [logprob for path in said for logprob in path.logprobs],
        text,
        truncated,
        versions[0] if versions else -1,
        versions if any(version != versions[0] for version in versions) else [],
        turns=turns,
        branches=[] if is_plain else branches,
    )


def _move(turn: Turn, by: int) -> Turn:
    return replace(turn, start=turn.start + by, end=turn.end + by)
