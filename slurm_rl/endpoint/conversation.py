"""What one program has said to the policy, as tokens: each request continues a recorded turn, or begins a branch.

    request   user "guess"                            -> a branch: the whole dialogue is rendered; sampled "6"
    request   user "guess", assistant "6", user "<"   -> the tokens of that turn, then what the template says of "<"
    request   user "sum up", ...                      -> another branch: nothing of it was recorded

A request that continues is never rendered again from its beginning: what the policy reads is what it sampled. Which
turn is continued follows from the messages alone, so that requests in any order make the same record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.prompts import Message
from slurm_rl.data.turns import TurnRenderer


class Sampled(Protocol):
    """What an engine samples; rl/groups.py has it as `Completion`."""

    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[float]: ...
    @property
    def text(self) -> str: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def weight_version(self) -> int: ...


@dataclass(eq=False)
class Said:
    """A recorded turn of the policy."""

    name: str
    """Of its place in the dialogue, the same in any order of requests."""
    parent: Said | None
    """The turn whose tokens it continues; None: it begins with the whole dialogue."""
    read: list[int]
    """Token ids behind the parent's; without one, the prompt."""
    reply: Sampled
    text_read: str
    """Of the messages that were new to the policy."""
    heard: bool = False
    """The program got the reply. One that nobody heard is no part of the episode."""

    @property
    def token_ids(self) -> list[int]:
        """All that it stands on, and the reply."""
        return [*(self.parent.token_ids if self.parent else []), *self.read, *self.reply.token_ids]

    @property
    def context(self) -> list[int]:
        """What the policy read before the reply."""
        return [*(self.parent.token_ids if self.parent else []), *self.read]


@dataclass(frozen=True)
class Place:
    """Where in the conversation a request asks."""

    name: str
    parent: Said | None
    read: list[int]
    text_read: str
    key: str
    """Of all its messages."""

    @property
    def context(self) -> list[int]:
        return [*(self.parent.token_ids if self.parent else []), *self.read]


class DialogueRenderer:
    """Messages to tokens: with a chat template as that says, else their contents end to end."""

    def __init__(self, tokenizer: Any, template: ChatTemplate | None) -> None:
        self.tokenizer, self.template = tokenizer, template
        self.turns = TurnRenderer(tokenizer, template)

    def begin(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a whole dialogue, up to where the policy replies.

        Raises:
            DataError: the template refuses the messages.
        """
        if self.template is None:
            return list(self.tokenizer(join_contents(messages))["input_ids"])
        text = self.template.render(list(messages), "a request", add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def go_on(self, messages: Sequence[Message], last_token: int | None) -> list[int]:
        """Token ids of new messages behind a reply that ended with this token."""
        new = join_contents(messages) if self.template is None else list(messages)
        return self.turns.render(new, last_token)


@dataclass
class Conversation:
    """All turns of one episode."""

    renderer: DialogueRenderer
    turns: list[Said] = field(default_factory=list)
    _by_messages: dict[str, Said] = field(default_factory=dict)
    _num_asked: dict[str, int] = field(default_factory=dict)

    def place(self, messages: Sequence[Message]) -> Place:
        """Where a request with these messages asks; each call is another reply.

        Raises:
            DataError: they cannot be rendered.
        """
        keys = list(message_keys(messages))
        for count in range(len(messages) - 1, 0, -1):
            parent = self._by_messages.get(keys[count - 1])
            new = messages[count:]
            if parent is not None and not any(message["role"] == "assistant" for message in new):
                read = self.renderer.go_on(new, next(reversed(parent.reply.token_ids), None))
                break
        else:
            parent, new = None, messages
            read = self.renderer.begin(messages)
        own = f"{parent.name if parent else ''}/{_digest(repr(read))[:16]}"
        number = self._num_asked.get(own, 0)
        self._num_asked[own] = number + 1
        return Place(f"{own}.{number}", parent, read, join_contents(new), keys[-1])

    def add(self, place: Place, reply: Sampled) -> Said:
        """Record what was sampled there."""
        said = Said(place.name, place.parent, place.read, reply, place.text_read)
        self.turns.append(said)
        answered = _extend(place.key, {"role": "assistant", "content": reply.text})
        # Of two replies with one text the first goes on, whoever of them is meant.
        self._by_messages.setdefault(answered, said)
        return said

    def branches(self) -> list[list[Said]]:
        """The turns that were heard, each in one branch: those that follow each other without a gap in the tokens.

        A branch whose first turn has a parent begins with tokens of another branch.
        """
        known: set[int] = set()
        for said in self.turns:
            one: Said | None = said if said.heard else None
            while one is not None:  # what a heard reply stands on was read, too
                known.add(id(one))
                one = one.parent
        tips: dict[int, list[Said]] = {}
        found: list[list[Said]] = []
        for said in sorted((said for said in self.turns if id(said) in known), key=_order(self.turns)):
            branch = tips.pop(id(said.parent), None) if said.parent else None
            if branch is None:
                branch = []
                found.append(branch)
            branch.append(said)
            tips[id(said)] = branch
        return found


def _order(turns: Sequence[Said]) -> Any:
    """By depth, then by name: parents first, and in the same order however requests came."""

    def depth(said: Said) -> int:
        return said.name.count("/")

    return lambda said: (depth(said), said.name)


def join_contents(messages: Sequence[Message]) -> str:
    return "".join(text_of(message) for message in messages)


def text_of(message: Message) -> str:
    """Its content as text."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def message_keys(messages: Sequence[Message]) -> Iterator[str]:
    """A key of the first message, of the first two, and so on."""
    key = ""
    for message in messages:
        key = _extend(key, message)
        yield key


def _extend(key: str, message: Message) -> str:
    """Programs keep of a reply its text, often without the spaces around it, and say nothing in several ways."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or []]
    plain = [message["role"], text_of(message).strip(), calls, message.get("tool_call_id"), message.get("name")]
    return _digest(key + json.dumps(plain, sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
