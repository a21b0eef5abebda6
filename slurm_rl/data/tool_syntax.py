"""Format of a model's tool calls, found from its chat template, for the parser.

    Qwen3    <tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>      begins with <tool_call>
    Llama 3  {"name": "add", "parameters": {"a": 1}}                                  begins with {"name":

The parsers are vLLM's, and run where vLLM is imported (rollout/vllm/tool_calls.py). A marker in the template chooses
the parser, which must parse the template's own call, or the model is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_rl.data.answer_spans import count_shared
from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.prompts import Message
from slurm_rl.errors import ConfigError, DataError

_ANCHOR = "Zwischenruf"
_QUESTION: Message = {"role": "user", "content": "?"}

SIGNS: Final[Mapping[str, str]] = {
    "<|tool_call>call:": "gemma4",
    "<start_function_call>": "functiongemma",
    "<function=": "qwen3_coder",
    "<arg_key>": "glm45",
    "<｜tool▁calls▁begin｜>": "deepseek_v3",
    "<|tool_calls_section_begin|>": "kimi_k2",
    "<|tool_call_start|>": "lfm2",
    "[TOOL_CALLS]": "mistral",
    "<tool_call>": "hermes",
    '{"name":': "llama3_json",
    "[": "pythonic",
}
"""Marker in a rendered call, without spaces -> vLLM's parser; the first match counts."""

_THOUGHTS = (("<think>", "</think>"), ("<|channel>", "<channel|>"), ("[THINK]", "[/THINK]"))
"""Start and end markers of thinking, by family."""
_TAG = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_EXAMPLES: Final[Mapping[str, Any]] = {
    "string": _ANCHOR, "integer": 17, "number": 2.5, "boolean": True, "array": [], "object": {}
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ToolSyntax:
    """Facts for a parser of calls."""

    parser: str
    """vLLM's name of it."""
    schemas: Sequence[dict[str, Any]]
    opening: str
    """Start of a call: a tag, or all before the tool's name; "" if the template renders no calls."""
    closing: str
    """End of a call: a tag or a character."""
    thought: tuple[str, str] | None
    """Start and end of thinking; None if the template has none."""
    thinks_first: bool
    """The template begins the answer inside a thought."""
    example: str
    """A call as the template writes it, which the parser must read as `example_call`; "" where it writes none."""
    example_call: tuple[str, dict[str, Any]]

    @classmethod
    def of(cls, template: ChatTemplate, parser: str | None) -> ToolSyntax:
        """Return the syntax of a template's model; raise ConfigError if `parser` is None and the template's call is
        unknown."""
        call = build_example(template.tools[0])
        messages = as_calls([call[0]], [call[1]])
        try:
            written = write_calls(template, messages).removesuffix(find_tail(template))
        except DataError:
            written = ""
        known = choose_parser(written) if parser is None else parser
        if known is None:
            raise ConfigError(
                "env.tool_parser must be set if the chat template does not show the format of calls",
                seen=repr(written) if written else "a template without calls",
                action="env.tool_parser=hermes, or another name of vLLM's --tool-call-parser",
            )
        source = str(template.tokenizer.get_chat_template(tools=list(template.tools)))
        thought = next((pair for pair in _THOUGHTS if pair[1] in source), None)
        prompt = template.render([_QUESTION], "a prompt", add_generation_prompt=True).rstrip()
        return cls(
            parser=known,
            schemas=template.tools,
            opening=find_opening(written, call[0]),
            closing=find_closing(written),
            thought=thought,
            thinks_first=thought is not None and prompt.endswith(thought[0]),
            example=written,
            example_call=call,
        )


def build_example(schema: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a call that fits the types of the schema.

    >>> build_example({"function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}})
    ('add', {'a': 17})
    """
    function = schema["function"]
    # In a generated schema, a property may have several types, or any.
    told = function["parameters"].get("properties", {}).items()
    kinds = {name: str(one.get("type")) for name, one in told if isinstance(one, dict)}
    return function["name"], {name: _EXAMPLES[kind] for name, kind in kinds.items() if kind in _EXAMPLES}


def choose_parser(written: str) -> str | None:
    """Return vLLM's parser for a rendered call; None if unknown.

    >>> choose_parser('<tool_call>{"name": "add"'), choose_parser('{"name": "add"'), choose_parser("add 3 and 4")
    ('hermes', 'llama3_json', None)
    """
    plain = "".join(written.split())
    return next((parser for sign, parser in SIGNS.items() if sign in plain), None)


def find_opening(written: str, name: str) -> str:
    """Return the common start of all calls.

    >>> find_opening('<tool_call>{"name": "add"}', "add"), find_opening('[add(a=1)]', "add")
    ('<tool_call>', '[')
    """
    before = written.partition(name)[0].strip()
    tag = _TAG.search(before)
    return tag.group() if tag else "".join(before.split())


def find_closing(written: str) -> str:
    """Return the common end of all calls.

    >>> find_closing('<tool_call>{"name": "add"}</tool_call>'), find_closing('[add(a=1)]')
    ('</tool_call>', ']')
    """
    plain = written.rstrip()
    return next((tag.group() for tag in _TAG.finditer(plain) if tag.end() == len(plain)), plain[-1:])


def as_calls(names: Sequence[str], arguments: Sequence[Any], ids: Sequence[str] = ()) -> Message:
    """Return a message of the assistant that calls tools."""
    ids = ids or [f"call{place:05d}" for place in range(len(names))]
    calls = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": values}}
        for one, name, values in zip(ids, names, arguments, strict=True)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def write_calls(template: ChatTemplate, message: Message) -> str:
    """Render calls without the start and end of the turn; raise DataError if the template writes none."""
    whole, plain = (
        template.render([_QUESTION, said], "a call", add_generation_prompt=False)
        for said in (message, {"role": "assistant", "content": _ANCHOR})
    )
    end = plain.rpartition(_ANCHOR)[2]
    written = whole[count_shared(whole, plain) :]
    if message["tool_calls"][-1]["function"]["name"] not in written:
        raise DataError(
            "tool results need a chat template that renders calls",
            seen=f"{written!r} in place of one",
            action="choose a model trained to call tools",
        )
    return written.removesuffix(end) if end else written


def find_tail(template: ChatTemplate) -> str:
    """Return the template's text after its last call: Gemma 4 adds the stop token `<|tool_response>`, which is not
    between two calls. "" for most others."""
    name = template.tools[0]["function"]["name"]
    try:
        two = write_calls(template, as_calls([name, name], [{"value": _ANCHOR}] * 2)).split(_ANCHOR)
    except DataError:  # of a template that takes one call a turn
        return ""
    if len(two) != 3:
        return ""
    between, end = (template.tokenizer(text, add_special_tokens=False)["input_ids"] for text in two[1:])
    rest = end[count_shared(between, end) :]
    is_one = len(rest) == 1 and rest[0] in template.tokenizer.all_special_ids
    return str(template.tokenizer.convert_ids_to_tokens(rest[0])) if is_one else ""
