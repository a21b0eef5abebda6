"""Tools in requests: the template renders their schemas, and the engine's parser reads the calls.

    {"tools": [{"type": "function", "function": {"name": "add", "parameters": {...}}}], "messages": [...]}
    -> {"role": "assistant", "content": null, "tool_calls": [{"id": "call00000", "function": {"name": "add", ...}}]}

Calls are never forced or repaired. An unreadable call stays text.
"""

import threading
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from slurm_rl.data.groups import Details, Trajectory
from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message
from slurm_rl.rewards.protocol import RequestError

T = TypeVar("T")
Schema = dict[str, Any]
"""`{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}`."""


_CONVERT_LOCK = threading.Lock()
"""msgspec builds the schema of a class at its first conversion, and two threads that do so at once end the process."""


class Function(msgspec.Struct):
    """A function as a request describes it."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    """A tool of a chat completion; that of a response has the function's keys itself."""

    function: Function


class Called(msgspec.Struct):
    """The function of a call."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CallBody(msgspec.Struct):
    """A call of a tool in a message."""

    function: Called
    id: str | None = None


def convert(tree: Any, kind: type[T]) -> T:
    """Return a part of a request as its type.

    Raises:
        RequestError: it has other types; the message has the path.
    """
    try:
        with _CONVERT_LOCK:
            return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise refuse(f"a request must have the types of OpenAI's API: {shorten(str(error), 200)}", tree) from None


def parse_tools(found: Sequence[Any] | None) -> tuple[Schema, ...]:
    """Return the functions of a request, in either of OpenAI's forms, without keys that templates ignore.

    >>> parse_tools([{"type": "function", "name": "now", "strict": True}])[0]["function"]
    {'name': 'now', 'description': '', 'parameters': {'type': 'object', 'properties': {}}}

    Raises:
        RequestError: not a function, or its parameters are not a JSON Schema.
    """
    schemas = tuple(_parse_tool(tool) for tool in found or ())
    names = [schema["function"]["name"] for schema in schemas]
    if len(set(names)) < len(names):
        raise refuse("tools must have distinct names", names)
    return schemas


def _parse_tool(tool: Any) -> Schema:
    import jsonschema

    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise refuse("a tool must be a function, which the program itself calls", kind)
    told = convert(tool, Tool).function if "function" in tool else convert(tool, Function)
    parameters = {"type": "object", "properties": {}, **(told.parameters or {})}
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
    except (jsonschema.SchemaError, RecursionError) as error:
        raise refuse("parameters of a tool must be a JSON Schema", f"{told.name}: {shorten(str(error))}") from None
    if not _stays_inside(parameters):
        raise refuse("$ref of a tool's parameters must be of the schema itself", told.name)
    function = {"name": told.name, "description": told.description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _stays_inside(tree: Any) -> bool:
    """No part of a schema is to be fetched from elsewhere."""
    if isinstance(tree, dict):
        refers = tree.get("$ref")
        return not (isinstance(refers, str) and not refers.startswith("#")) and all(map(_stays_inside, tree.values()))
    return all(map(_stays_inside, tree)) if isinstance(tree, list) else True


def reads_calls(choice: Any, *, overrule: bool) -> bool:
    """Return whether to parse calls, from `tool_choice`.

    Raises:
        RequestError: a call is to be forced, which no policy samples by itself.
    """
    if choice in (None, "auto", "none") or overrule:
        return choice != "none"
    raise RequestError(
        "tool_choice must be auto or none, since a policy is trained by how it is sampled and a forced call is not",
        seen=shorten(repr(choice)),
        action="leave tool_choice out of the request, or set env.ignore_request_sampling=true",
        status=400,
    )


def parse_call(body: CallBody) -> dict[str, Any]:
    """Return a call of `tool_calls`, with arguments as templates read them: an object wherever they are one."""
    read = {"name": body.function.name, "arguments": _read_object(body.function.arguments)}
    return {"id": body.id or "", "type": "function", "function": read}


def read_calls(message: Message) -> Message:
    """Return a message of ours with the arguments of its calls as templates read them."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    read = [
        {**one, "function": {**one["function"], "arguments": _read_object(one["function"]["arguments"])}}
        for one in calls
    ]
    return {**message, "tool_calls": read}


def _read_object(given: str | dict[str, Any] | None) -> Any:
    if not isinstance(given, str):
        return given or {}
    try:
        tree = msgspec.json.decode(given) if given.strip() else {}
    except (ValueError, RecursionError):
        return given
    return tree if isinstance(tree, dict) else given


def name_results(messages: Sequence[Message]) -> list[Message]:
    """Add the name of the called tool to tool messages; some templates need it.

    Raises:
        RequestError: a result without a preceding call.
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


def answer_message(reply: Trajectory, messages: Sequence[Message], *, at_most_one: bool) -> Message:
    """Return the message for the program: text without thinking, and calls.

    Args:
        reply: the sampled reply, parsed by the engine.
        messages: messages of the request; call ids continue theirs and are the same in every run.
        at_most_one: drop further calls.
    """
    details = reply.details or Details()
    good = [call for call in details.calls if call.error is None][: 1 if at_most_one else None]
    unread = "".join(call.arguments for call in details.calls if call.error in ("malformed", "cut"))
    message: Message = {"role": "assistant", "content": details.content + unread}
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
    """Return the error of a bad request."""
    return RequestError(rule, seen=shorten(repr(seen)), action="correct the request", status=400)
