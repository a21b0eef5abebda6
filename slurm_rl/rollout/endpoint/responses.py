"""OpenAI's `POST /v1/responses`.

{"instructions": "Be short.", "input": "3+4=", "max_output_tokens": 4}
{"previous_response_id": "resp_...", "input": [{"role": "user", "content": "and 5+1?"}]}

Tool calls and results are items of the input; they are converted to messages.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from slurm_rl.data.prompts import Message
from slurm_rl.rollout.endpoint.answers import usage
from slurm_rl.rollout.endpoint.conversation import Said
from slurm_rl.rollout.endpoint.requests import (
    MODEL,
    Body,
    MessageBody,
    ReplyRequest,
    SamplingRule,
    TextPart,
    check_keys,
    parse_message,
    read_length,
    read_tools,
)
from slurm_rl.rollout.endpoint.tools import CallBody, Called, convert, name_results, parse_call
from slurm_rl.rollout.endpoint.tools import refuse as _refuse


class Format(msgspec.Struct):
    """Only text is sampled."""

    type: Literal["text"] = "text"


class TextOptions(msgspec.Struct):
    """`text` of a request."""

    format: Format | None = None
    verbosity: str | None = None


class CallItem(msgspec.Struct):
    """An item of the input: a call of a tool."""

    name: str
    call_id: str | None = None
    arguments: str | dict[str, Any] | None = None


class ResultItem(msgspec.Struct):
    """An item of the input: the result of a tool."""

    call_id: str | None = None
    output: str | list[TextPart] | None = None


class ResponseBody(Body, kw_only=True):
    """The body of `POST /v1/responses`."""

    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    previous_response_id: str | None = None
    text: TextOptions | None = None


def parse_response(tree: Mapping[str, Any], rule: SamplingRule, dialogues: Mapping[str, list[Message]]) -> ReplyRequest:
    """Parse a request for a response.

    Args:
        dialogues: the messages up to and with each response of the episode, by its id.

    Raises:
        RequestError: invalid types, or an unsupported option.
    """
    body = convert(tree, ResponseBody)
    check_keys(tree, body, rule)
    before = body.previous_response_id
    if before is not None and before not in dialogues:
        raise _refuse("previous_response_id must be that of a response of this episode", before)
    head: list[Message] = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    messages = [*head, *(dialogues[before] if before is not None else [])]
    for item in [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input:
        _append(messages, item)
    return ReplyRequest(
        messages=name_results(messages),
        **read_length(body.max_output_tokens, rule),
        stream=bool(body.stream),
        **read_tools(body, rule),
    )


def _append(messages: list[Message], item: dict[str, Any]) -> None:
    """Add an item of the input to the messages; a call belongs to the preceding assistant message.

    Raises:
        RequestError: unknown kind of item.
    """
    kind = item.get("type", "message")
    if kind == "function_call":
        called = convert(item, CallItem)
        call = parse_call(CallBody(Called(called.name, called.arguments), called.call_id))
        goes_on = bool(messages) and messages[-1]["role"] == "assistant"
        said = messages.pop() if goes_on else {"role": "assistant", "content": ""}
        messages.append({**said, "tool_calls": [*said.get("tool_calls", ()), call]})
    elif kind == "function_call_output":
        result = convert(item, ResultItem)
        messages.append(parse_message(MessageBody("tool", result.output, tool_call_id=result.call_id)))
    elif kind == "message":
        messages.append(parse_message(convert(item, MessageBody)))
    elif kind != "reasoning":
        raise _refuse("an item of the input must be a message, a call of a function or its output", kind)


def response_answer(request: ReplyRequest, said: Said, identity: str, rule: SamplingRule) -> dict[str, Any]:
    """The body of `POST /v1/responses`."""
    is_cut = said.reply.truncated
    status = "incomplete" if is_cut else "completed"
    counts = usage([said])
    return {
        "id": f"resp_{identity}",
        "object": "response",
        "created_at": int(time.time()),
        "model": MODEL,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "metadata": {},
        "output": list(_items(said, identity, status)),
        "parallel_tool_calls": not request.one_call,
        "temperature": rule.temperature,
        "top_p": rule.top_p,
        "tool_choice": "auto" if request.reads_calls else "none",
        "tools": [{"type": "function", "strict": None, **schema["function"]} for schema in request.tools],
        "max_output_tokens": request.max_tokens,
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        },
    }


def _items(said: Said, identity: str, status: str) -> Iterator[dict[str, Any]]:
    """Return the text and each call as items; without text there is no message."""
    text, calls = said.message["content"], said.message.get("tool_calls", ())
    if text or not calls:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        yield {"type": "message", "id": f"msg_{identity}", "status": status, "role": "assistant", "content": [part]}
    for place, call in enumerate(calls):
        named = {"id": f"fc_{identity}_{place}", "call_id": call["id"], "status": "completed"}
        yield {"type": "function_call", **named, **call["function"]}


def response_events(answer: Mapping[str, Any]) -> Iterator[str]:
    """Return server-sent events; a reply is sent as one delta."""
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for place, item in enumerate(answer["output"]):
        events += _item_events(place, item)
    events.append((f"response.{answer['status']}", {"response": dict(answer)}))
    for number, (kind, tree) in enumerate(events):
        yield f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **tree})}\n\n"


def _item_events(place: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    of = {"output_index": place}
    where = {**of, "item_id": item["id"]}
    if item["type"] == "function_call":
        whole = item["arguments"]
        yield "response.output_item.added", {**of, "item": {**item, "status": "in_progress", "arguments": ""}}
        yield "response.function_call_arguments.delta", {**where, "delta": whole}
        yield "response.function_call_arguments.done", {**where, "name": item["name"], "arguments": whole}
    else:
        [part], at = item["content"], {**where, "content_index": 0}
        yield "response.output_item.added", {**of, "item": {**item, "status": "in_progress", "content": []}}
        yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
        yield "response.output_text.delta", {**at, "delta": part["text"], "logprobs": []}
        yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**at, "part": part}
    yield "response.output_item.done", {**of, "item": item}
