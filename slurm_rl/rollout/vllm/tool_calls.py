"""Calls of tools in what was sampled, read by vLLM's own parsers, in the process that has vLLM imported.

vLLM's parsers are made for a server that hands on what it does not understand: a call that cannot be read is text to
them, and a good call beside a bad one is lost with it. So a reply is cut where calls begin, each piece is parsed by
itself, and a piece without a call is one that the policy got wrong. Thinking goes first: a call in it is not made.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from slurm_rl.data.groups import Completion
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.envs.environment import ToolCall
from slurm_rl.errors import ConfigError

_KEPT_READERS = 64
"""Sets of tools that programs bring."""


@dataclass(frozen=True)
class SaidAndCalled:
    """A reply in parts."""

    content: str
    """Neither thought nor call."""
    calls: tuple[ToolCall, ...]


class ToolCallReader:
    """Replies to calls.

    Raises:
        ConfigError: vLLM has no such parser, it does not take this tokenizer, or it reads something else than the call
            that the chat template wrote.
    """

    def __init__(self, syntax: ToolSyntax, tokenizer: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        # They log each text that is no call, with a traceback.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        self.syntax, self.tokenizer = syntax, tokenizer
        self.request = ChatCompletionRequest(messages=[], model="policy", tools=list(syntax.schemas))
        try:
            self.parser_class = ToolParserManager.get_tool_parser(syntax.parser)
            self.parser_class(tokenizer, self.request.tools)
        except Exception as error:
            raise _refuse(syntax, f"{type(error).__name__}: {error}") from error
        self._prove()

    def read(self, text: str, *, cut: bool) -> SaidAndCalled:
        """What a reply says and calls.

        Args:
            text: with special tokens, without what ended the turn.
            cut: a length limit ended it.
        """
        thought, spoken = split_thought(text, self.syntax)
        thought_calls = [ToolCall("", piece, error="thinking") for piece in self._pieces(thought)[1]]
        before, pieces = self._pieces(spoken)
        calls: list[ToolCall] = []
        for place, piece in enumerate(pieces):
            is_cut = cut and place == len(pieces) - 1
            # Some parsers close for themselves what is open.
            found, rest = ([], "") if is_cut and self.syntax.closing not in piece else self._parse(piece)
            calls += found or [ToolCall("", piece, error="cut" if is_cut else "malformed")]
            before += rest
        return SaidAndCalled(before, (*calls, *thought_calls))

    def _pieces(self, text: str) -> tuple[str, list[str]]:
        """What is before the first call, and a piece of text for each."""
        opening = self.syntax.opening
        if not opening:
            return ("", [text]) if self._parse(text)[0] else (text, [])
        if opening[0] in "<[" and len(opening) > 1:
            first, *others = text.split(opening)
            return first, [opening + other for other in others]
        # Syntax that other text may have in it, too: all of the reply, or none of it.
        return ("", [text]) if "".join(text.split()).startswith(opening) else (text, [])

    def _parse(self, piece: str) -> tuple[list[ToolCall], str]:
        try:
            found = self.parser_class(self.tokenizer, self.request.tools).extract_tool_calls(piece, self.request)
        except Exception:  # of a parser that met what it was not made for
            return [], ""
        calls = [ToolCall(call.function.name, call.function.arguments) for call in found.tool_calls]
        return calls, found.content or ""

    def _prove(self) -> None:
        if not self.syntax.example:
            return
        name, arguments = self.syntax.example_call
        begun = self.syntax.thought[1] if self.syntax.thought and self.syntax.thinks_first else ""
        calls = self.read(begun + self.syntax.example, cut=False).calls
        if len(calls) != 1 or calls[0].name != name or not _same(calls[0].arguments, arguments):
            raise _refuse(self.syntax, f"{list(calls)} of {self.syntax.example!r}")


class CallReaders:
    """Of programs, which bring tools of their own: a reader for each set of them, made and proven once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._lock = threading.Lock()
        self._known: OrderedDict[str, ToolCallReader | ConfigError] = OrderedDict()

    def find(self, syntax: ToolSyntax | None) -> ToolCallReader | None:
        """Of replies to a request that was not refused."""
        found = None if syntax is None else self._find(syntax)
        return None if isinstance(found, ConfigError) else found

    def refuse(self, syntax: ToolSyntax | None) -> str | None:
        """Why calls could not be read; None where they can be."""
        found = None if syntax is None else self._find(syntax)
        return str(found) if isinstance(found, ConfigError) else None

    def _find(self, syntax: ToolSyntax) -> ToolCallReader | ConfigError:
        key = json.dumps([syntax.parser, syntax.opening, list(syntax.schemas)], sort_keys=True)
        with self._lock:
            found = self._known.pop(key, None) or self._make(syntax)
            self._known[key] = found
            if len(self._known) > _KEPT_READERS:
                self._known.popitem(last=False)
            return found

    def _make(self, syntax: ToolSyntax) -> ToolCallReader | ConfigError:
        try:
            return ToolCallReader(syntax, self.tokenizer)
        except ConfigError as error:
            return error
        except Exception as error:  # vLLM's own reading of a schema, which a program wrote
            return _refuse(syntax, f"{type(error).__name__}: {error}")


def read_reply(reader: ToolCallReader, completion: Completion, stopped_by: int | str | None) -> Completion:
    """The completion with what it says and calls."""
    # Of many models what makes a call one is special tokens. The last one ended the turn, unless a limit did.
    ended = not completion.truncated and not isinstance(stopped_by, str)
    seen = completion.token_ids[:-1] if ended else completion.token_ids
    whole = str(reader.tokenizer.decode(seen, skip_special_tokens=False))
    if isinstance(stopped_by, str) and stopped_by in whole:
        whole = whole[: whole.rindex(stopped_by)]
    said = reader.read(whole, cut=completion.truncated)
    return replace(completion, content=said.content, calls=said.calls)


def split_thought(text: str, syntax: ToolSyntax) -> tuple[str, str]:
    """Thinking, and what is said behind or around it."""
    if syntax.thought is None:
        return "", text
    begin, end = syntax.thought
    thought, spoken, inside = "", "", syntax.thinks_first
    while text:
        part, mark, text = text.partition(end if inside else begin)
        if inside:
            thought += part
        else:
            spoken += part
        inside = not inside if mark else inside
    return thought, spoken


def _same(text: str, arguments: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(text) == arguments)
    except ValueError:
        return False


def _refuse(syntax: ToolSyntax, seen: str) -> ConfigError:
    return ConfigError(
        f"env.tool_parser={syntax.parser} must read the calls that the chat template writes",
        seen=seen,
        action="name the parser of this model's family, as vLLM's --tool-call-parser has it",
    )
