"""Token record of one program's conversation: each request continues a recorded turn or begins a branch.

    request   user "guess"                            -> a branch: the whole dialogue is rendered; sampled "6"
    request   user "guess", assistant "6", user "<"   -> the tokens of that turn, then the template's tokens for "<"
    request   user "sum up", ...                      -> another branch: no recorded turn matches

A continued turn is never rendered again: the policy reads the tokens that it sampled. The matching turn depends only on
the messages, so that requests in any order give the same record.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from slurm_rl.data.chat import NO_TEMPLATE, ChatTemplate
from slurm_rl.data.groups import Trajectory
from slurm_rl.data.prompts import Message, Text
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.errors import DataError
from slurm_rl.rollout.endpoint.tools import Schema, read_calls

_KEPT_RENDERERS = 64
"""Sets of tools that programs ask with; each is proven once."""


@dataclass(eq=False)
class Said:
    """A recorded turn of the policy."""

    place: Place
    reply: Trajectory
    message: Message
    """The reply as its program gets it."""
    heard: bool = False
    """The program received the reply. Other replies are not part of the episode."""

    @property
    def token_ids(self) -> list[int]:
        """Tokens of context and reply."""
        return [*self.place.context, *self.reply.token_ids]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Tokens that the policy reads for a request."""

    parent: Said | None
    """Turn that it continues; None: it begins with the whole dialogue."""
    read: list[int]
    """Token ids behind the parent's; without one, the prompt."""
    new: Sequence[Message]
    """The messages that are new to the policy."""
    key: str
    """Hash of its tools and messages."""
    tools: Sequence[Schema] = ()

    @property
    def context(self) -> list[int]:
        """Tokens before the reply."""
        return [*(self.parent.token_ids if self.parent else []), *self.read]


@dataclass(frozen=True, kw_only=True)
class Place(Reading):
    """Where in the conversation a request asks."""

    name: str
    """Derived from the parent's name, the new tokens, the variant, and the count of equal requests, so that it does not
    depend on the order of requests."""


class DialogueRenderer:
    """Convert messages to tokens, with the chat template or by concatenation. Thread-safe.

    Args:
        tool_parser: env.tool_parser.
    """

    def __init__(self, tokenizer: Any, template: ChatTemplate | None, tool_parser: str | None = None) -> None:
        self.tokenizer, self.template, self.tool_parser = tokenizer, template, tool_parser
        self.turns = TurnRenderer(tokenizer, template)
        self.syntax: ToolSyntax | None = None
        """How calls of its tools are written; None without tools."""
        self._with_tools: OrderedDict[str, DialogueRenderer] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n times as many has more than n tokens."""
        return max(map(len, self.tokenizer.get_vocab()))

    def with_tools(self, tools: Sequence[Schema]) -> DialogueRenderer:
        """Return a renderer for these tools after checking the template.

        Raises:
            ConfigError, DataError: the template does not render tools or calls, or no parser reads its calls.
        """
        if not tools:
            return self
        key = json.dumps(tools, sort_keys=True)
        with self._lock:
            found = self._with_tools.get(key)
        if found is None:  # two threads may both prove it, and neither holds up the others
            if self.template is None:
                raise DataError("tools need a chat template that lists them", seen=NO_TEMPLATE)
            template = replace(self.template, tools=tuple(tools))
            found = DialogueRenderer(self.tokenizer, template)
            found.syntax = ToolSyntax.of(template, self.tool_parser)
        with self._lock:
            self._with_tools[key] = found
            self._with_tools.move_to_end(key)
            if len(self._with_tools) > _KEPT_RENDERERS:
                self._with_tools.popitem(last=False)
        return found

    def begin(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a whole dialogue, up to where the policy replies.

        Raises:
            DataError: the template refuses the messages.
        """
        return self.turns.begin(self._text(messages))

    def go_on(self, messages: Sequence[Message], last_token: int | None) -> list[int]:
        """Token ids of new messages behind a reply that ended with this token."""
        return self.turns.render(self._text(messages), last_token)

    def _text(self, messages: Sequence[Message]) -> Text:
        return join_contents(messages) if self.template is None else list(messages)


@dataclass
class Conversation:
    """All turns of one episode."""

    renderer: DialogueRenderer
    turns: list[Said] = field(default_factory=list)
    _by_messages: dict[str, Said] = field(default_factory=dict)
    _num_asked: dict[str, int] = field(default_factory=dict)

    def read(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> Reading:
        """Return the tokens for these messages and tools, without side effects. Thread-safe.

        Raises:
            DataError: rendering failed.
            ConfigError: see `DialogueRenderer.with_tools`.
        """
        renderer = self.renderer.with_tools(tools)
        keys = list(message_keys(messages, tools))
        for count in range(len(messages) - 1, 0, -1):
            parent = self._by_messages.get(keys[count - 1])
            new = messages[count:]
            if parent is not None and not any(message["role"] == "assistant" for message in new):
                read = renderer.go_on(new, next(reversed(parent.reply.token_ids), None))
                break
        else:
            parent, new = None, messages
            read = renderer.begin(messages)
        return Reading(parent=parent, read=read, new=new, key=keys[-1], tools=tools)

    def place(self, reading: Reading, variant: str = "") -> Place:
        """Return the position of a request; each call is another reply.

        Args:
            variant: other properties of the reply; requests that differ in it are counted separately.
        """
        before = reading.parent.place.name if reading.parent else ""
        own = f"{before}/{_digest(repr(reading.read) + variant)[:16]}"
        number = self._num_asked.get(own, 0)
        self._num_asked[own] = number + 1
        return Place(**vars(reading), name=f"{own}.{number}")

    def add(self, place: Place, reply: Trajectory, message: Message | None = None) -> Said:
        """Record a sampled reply and the message for the program (its text by default)."""
        message = message or {"role": "assistant", "content": reply.text}
        said = Said(place, reply, message)
        self.turns.append(said)
        answered = _extend(place.key, message)
        # If two replies have the same text, the first is continued.
        self._by_messages.setdefault(answered, said)
        return said

    def branches(self) -> list[list[Said]]:
        """Return the received turns as branches of turns with contiguous tokens.

        A branch begins with tokens of another branch if its first turn has a parent.
        """
        known: set[int] = set()
        for said in self.turns:
            one: Said | None = said if said.heard else None
            while one is not None:  # the parents of a received reply count as received
                known.add(id(one))
                one = one.place.parent
        tips: dict[int, list[Said]] = {}
        found: list[list[Said]] = []
        for said in sorted((said for said in self.turns if id(said) in known), key=_order):
            branch = tips.pop(id(said.place.parent), None) if said.place.parent else None
            if branch is None:
                branch = []
                found.append(branch)
            branch.append(said)
            tips[id(said)] = branch
        return found


def _order(said: Said) -> tuple[int, str]:
    """Return depth and name: parents come first, independent of the order of requests."""
    return said.place.name.count("/"), said.place.name


def join_contents(messages: Sequence[Message]) -> str:
    return "".join(text_of(message) for message in messages)


def text_of(message: Message) -> str:
    """Return the content as text."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def message_keys(messages: Sequence[Message], tools: Sequence[Schema] = ()) -> Iterator[str]:
    """Yield a key for each prefix of the messages; it depends on the tools, too."""
    key = _digest(json.dumps(tools, sort_keys=True)) if tools else ""
    for message in messages:
        key = _extend(key, message)
        yield key


def _extend(key: str, message: Message) -> str:
    """Return the key with a message added; spaces around the text and forms of an empty text do not matter."""
    calls = [call["function"] for call in read_calls(message).get("tool_calls", ())]
    plain = [message["role"], text_of(message).strip(), calls, message.get("tool_call_id"), message.get("name")]
    return _digest(key + json.dumps(plain, sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
