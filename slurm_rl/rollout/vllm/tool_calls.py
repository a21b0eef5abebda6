"""Tool calls in sampled text, parsed by vLLM's tool parsers. Import only in processes that have vLLM.

vLLM's parsers return text for a call that they cannot parse, and lose valid calls next to it. So a reply is split where
calls begin and each piece is parsed separately; a piece without a call is a malformed call. Thinking is removed first:
calls in it are not executed.
"""

import json
import logging
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from slurm_rl.data.groups import Details, Trajectory
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.envs.environment import ToolCall
from slurm_rl.errors import ConfigError

_MAX_READERS = 64
"""Cached sets of tools of agents."""


class ToolCallReader:
    """Parses the tool calls of replies.

    Raises:
        ConfigError: vLLM has no such parser, the parser rejects the tokenizer, or it cannot parse a call that the chat
            template rendered.
    """

    def __init__(self, syntax: ToolSyntax, tokenizer: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        # Parsers log a traceback for each text that is no call.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        self.syntax, self.tokenizer = syntax, tokenizer
        self.request = ChatCompletionRequest(messages=[], model="policy", tools=list(syntax.schemas))
        try:
            self.parser_class = ToolParserManager.get_tool_parser(syntax.parser)
            self.parser_class(tokenizer, self.request.tools)
        except Exception as error:
            raise _refuse(syntax, f"{type(error).__name__}: {error}") from error
        self._prove()

    def read(self, text: str, *, cut: bool) -> Details:
        """Return the content (text without thinking and calls) and the calls of a reply.

        Args:
            text: with special tokens, without the stop token or string.
            cut: a length limit ended the reply.
        """
        thought, spoken = split_thought(text, self.syntax)
        thought_calls = [ToolCall("", piece, error="thinking") for piece in self._pieces(thought)[1]]
        before, pieces = self._pieces(spoken)
        calls: list[ToolCall] = []
        for place, piece in enumerate(pieces):
            is_cut = cut and place == len(pieces) - 1
            # Some parsers complete a call that was cut.
            found, rest = ([], "") if is_cut and self.syntax.closing not in piece else self._parse(piece)
            calls += found or [ToolCall("", piece, error="cut" if is_cut else "malformed")]
            before += rest
        return Details(content=before, calls=(*calls, *thought_calls))

    def _pieces(self, text: str) -> tuple[str, list[str]]:
        """Return the text before the first call, and one piece of text per call."""
        opening = self.syntax.opening
        if not opening:
            return ("", [text]) if self._parse(text)[0] else (text, [])
        if opening[0] in "<[" and len(opening) > 1:
            first, *others = text.split(opening)
            return first, [opening + other for other in others]
        # The opening may occur in normal text: treat the whole reply as one call, or none of it.
        return ("", [text]) if "".join(text.split()).startswith(opening) else (text, [])

    def _parse(self, piece: str) -> tuple[list[ToolCall], str]:
        try:
            found = self.parser_class(self.tokenizer, self.request.tools).extract_tool_calls(piece, self.request)
        except Exception:  # the parser failed on malformed input
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
    """Cache of readers for the tools that agents bring with their requests."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._cache: OrderedDict[str, ToolCallReader | ConfigError] = OrderedDict()

    def get(self, syntax: ToolSyntax | None) -> ToolCallReader | None:
        """Return the reader of a request's tools; None without tools.

        Raises:
            ConfigError: the calls cannot be parsed.
        """
        if syntax is None:
            return None
        key = json.dumps([syntax.parser, syntax.opening, list(syntax.schemas)], sort_keys=True)
        reader = self._cache.pop(key, None) or self._make(syntax)
        self._cache[key] = reader
        if len(self._cache) > _MAX_READERS:
            self._cache.popitem(last=False)
        if isinstance(reader, ConfigError):
            raise reader
        return reader

    def _make(self, syntax: ToolSyntax) -> ToolCallReader | ConfigError:
        try:
            return ToolCallReader(syntax, self.tokenizer)
        except ConfigError as error:
            return error
        except Exception as error:  # vLLM failed on the agent's schema
            return _refuse(syntax, f"{type(error).__name__}: {error}")


def read_reply(reader: ToolCallReader, completion: Trajectory, stopped_by: int | str | None) -> Trajectory:
    """Return the completion with its content and calls."""
    # Many models mark calls by special tokens, so keep them. Drop the stop token unless a limit ended the reply.
    ended = not completion.truncated and not isinstance(stopped_by, str)
    seen = completion.token_ids[:-1] if ended else completion.token_ids
    whole = str(reader.tokenizer.decode(seen, skip_special_tokens=False))
    if isinstance(stopped_by, str) and stopped_by in whole:
        whole = whole[: whole.rindex(stopped_by)]
    parsed = reader.read(whole, cut=completion.truncated)
    details = replace(completion.details or Details(), content=parsed.content, calls=parsed.calls)
    return replace(completion, details=details)


def split_thought(text: str, syntax: ToolSyntax) -> tuple[str, str]:
    """Return the thinking and the rest of a text."""
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
