"""Tools in requests: the template tells the policy of their schemas, and the engine's parser reads its calls.

    {"tools": [{"type": "function", "function": {"name": "add", "parameters": {...}}}], "messages": [...]}
    -> {"role": "assistant", "content": null, "tool_calls": [{"id": "call00000", "function": {"name": "add", ...}}]}

A call is what the policy wrote and nothing else: none is forced, and none is mended. What looks like a call and cannot
be read stays text, which is what the program then has of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message
from slurm_rl.rewards.protocol import RequestError

Schema = dict[str, Any]
"""`{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}`."""


def parse_tools(found: Any) -> tuple[Schema, ...]:
    """The functions of a request, in either of OpenAI's two forms, without what no template reads.

    >>> parse_tools([{"type": "function", "name": "now", "strict": True}])[0]["function"]
    {'name': 'now', 'description': '', 'parameters': {'type': 'object', 'properties': {}}}

    Raises:
        RequestError: something is no function, or its parameters are no JSON Schema.
    """
    if found is not None and not isinstance(found, list):
        raise refuse("tools must be a list", found)
    schemas = tuple(_parse_tool(tool) for tool in found or ())
    names = [schema["function"]["name"] for schema in schemas]
    if len(set(names)) < len(names):
        raise refuse("tools must have names of their own", names)
    return schemas


def _parse_tool(tool: Any) -> Schema:
    import jsonschema

    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise refuse("a tool must be a function, which the program itself calls", kind)
    told = tool.get("function", tool)
    name = told.get("name") if isinstance(told, dict) else None
    if not isinstance(name, str) or not name:
        raise refuse("a tool must have a name", tool)
    given = told.get("parameters") or {}
    if not isinstance(given, dict):
        raise refuse("parameters of a tool must be a JSON Schema", given)
    parameters = {"type": "object", "properties": {}, **given}
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
    except (jsonschema.SchemaError, RecursionError) as error:
        raise refuse("parameters of a tool must be a JSON Schema", f"{name}: {shorten(str(error))}") from None
    if not _stays_inside(parameters):
        raise refuse("$ref of a tool's parameters must be of the schema itself", name)
    function = {"name": name, "description": str(told.get("description") or ""), "parameters": parameters}
    return {"type": "function", "function": _as_unicode(function)}


def _stays_inside(tree: Any) -> bool:
    """No part of a schema is to be fetched from elsewhere."""
    if isinstance(tree, dict):
        refers = tree.get("$ref")
        return not (isinstance(refers, str) and not refers.startswith("#")) and all(map(_stays_inside, tree.values()))
    return all(map(_stays_inside, tree)) if isinstance(tree, list) else True


def reads_calls(choice: Any, *, overrule: bool) -> bool:
    """Whether calls are looked for, by `tool_choice`.

    Raises:
        RequestError: a call is to be forced, which no policy samples by itself.
    """
    if choice in (None, "auto", "none") or overrule:
        return choice != "none"
    raise RequestError(
        "tool_choice must be auto or none, since a policy is trained by how it is sampled and a forced call is not",
        seen=shorten(repr(choice)),
        action="leave tool_choice out of the request, or set env.overrule_sampling=true",
        status=400,
    )


def parse_calls(found: Any) -> list[dict[str, Any]]:
    """`tool_calls` of a message, with arguments as templates read them: an object wherever they are one.

    Raises:
        RequestError: they are none.
    """
    calls = found or []
    if not isinstance(calls, list):
        raise refuse("tool_calls must be a list", found)
    return [_parse_call(call) for call in calls]


def _parse_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refuse("a call of a tool must have a function with a name", call)
    read = {"name": function["name"], "arguments": _read_object(function.get("arguments"))}
    return {"id": str(call.get("id") or ""), "type": "function", "function": _as_unicode(read)}


def _as_unicode(tree: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise refuse("tools must be valid Unicode", tree) from None
    return tree


def _read_object(given: Any) -> Any:
    if not isinstance(given, str):
        return given or {}
    try:
        tree = json.loads(given) if given.strip() else {}
    except (ValueError, RecursionError):
        return given
    return tree if isinstance(tree, dict) else given


def name_results(messages: Sequence[Message]) -> list[Message]:
    """Messages of tools with the name of what was called, which some templates read and OpenAI's form leaves out.

    Raises:
        RequestError: one answers no call that is before it.
    """
    names: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool":
            called = message.get("tool_call_id")
            if called not in names:
                raise refuse("a message of a tool must have the tool_call_id of a call before it", called)
            message = {**message, "name": names[called]}
        found.append(message)
    return found


def answer_message(reply: Any, messages: Sequence[Message], *, at_most_one: bool) -> Message:
    """A reply with tools as the program gets it: what is neither thinking nor a call, and the calls.

    Args:
        reply: what was sampled, as the engine read it.
        messages: of the request; names of calls go on from theirs, so that they are the same in every run.
        at_most_one: further calls are not handed on.
    """
    good = [call for call in reply.calls if call.error is None][: 1 if at_most_one else None]
    unread = "".join(call.arguments for call in reply.calls if call.error in ("malformed", "cut"))
    message: Message = {"role": "assistant", "content": reply.content + unread}
    if good:
        first = sum(len(message.get("tool_calls", ())) for message in messages)
        message["tool_calls"] = [
            {
                "id": f"call{place:05d}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(good, start=first)
        ]
    return message


def refuse(rule: str, seen: Any) -> RequestError:
    """What is wrong with a request."""
    return RequestError(rule, seen=shorten(repr(seen)), action="correct the request", status=400)
