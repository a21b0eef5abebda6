"""The newer of OpenAI's two interfaces, `POST /v1/responses`: the same dialogue in other words.

{"instructions": "Be short.", "input": "3+4=", "max_output_tokens": 4}
{"previous_response_id": "resp_...", "input": [{"role": "user", "content": "and 5+1?"}]}

A call of a tool and its result are items of their own, beside the messages; here they are parts of messages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_rl.data.prompts import Message
from slurm_rl.endpoint.answers import usage
from slurm_rl.endpoint.conversation import Said
from slurm_rl.endpoint.requests import (
    MODEL,
    ReplyRequest,
    SamplingRule,
    check_keys,
    parse_message,
    read_flag,
    read_length,
    read_tools,
)
from slurm_rl.endpoint.tools import name_results
from slurm_rl.endpoint.tools import refuse as _refuse

_KNOWN = {"input", "instructions", "max_output_tokens", "previous_response_id", "stream"}


def parse_response(tree: Mapping[str, Any], rule: SamplingRule, dialogues: Mapping[str, list[Message]]) -> ReplyRequest:
    """A request for a response.

    Args:
        dialogues: the messages up to and with each response of the episode, by its id.

    Raises:
        RequestError: what is asked for is not what the run can give.
    """
    check_keys(tree, rule, _KNOWN)
    form = (tree.get("text") or {}).get("format") or {"type": "text"}
    if form != {"type": "text"}:
        raise _refuse("text.format must be text", form)
    before = tree.get("previous_response_id")
    if before is not None and before not in dialogues:
        raise _refuse("previous_response_id must be that of a response of this episode", before)
    asked = tree.get("input")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if not isinstance(items, list) or not items:
        raise _refuse("input must be text, or a list with an item at least", asked)
    told = tree.get("instructions")
    head = [] if told is None else [parse_message({"role": "system", "content": told})]
    messages = [*head, *(dialogues[before] if before is not None else [])]
    for item in items:
        if not _is_thinking(item):
            _append(messages, item)
    return ReplyRequest(
        messages=name_results(messages),
        **read_length(tree.get("max_output_tokens"), rule),
        stream=read_flag(tree, "stream"),
        **read_tools(tree, rule),
    )


def _append(messages: list[Message], item: Any) -> None:
    """An item of the input as a message; a call goes to what the policy said before it, if it said so.

    Raises:
        RequestError: it is of another kind.
    """
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "function": function}
        goes_on = bool(messages) and messages[-1]["role"] == "assistant"
        said = messages.pop() if goes_on else {"role": "assistant", "content": ""}
        messages.append(parse_message({**said, "tool_calls": [*said.get("tool_calls", ()), call]}))
    elif kind == "function_call_output":
        result = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        messages.append(parse_message(result))
    elif kind == "message":
        messages.append(parse_message(item))
    else:
        raise _refuse("an item of the input must be a message, a call of a function or its output", kind)


def _is_thinking(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


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
    """What was said, and each call; a call alone is no message."""
    text, calls = said.message["content"], said.message.get("tool_calls", ())
    if text or not calls:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        yield {"type": "message", "id": f"msg_{identity}", "status": status, "role": "assistant", "content": [part]}
    for place, call in enumerate(calls):
        named = {"id": f"fc_{identity}_{place}", "call_id": call["id"], "status": "completed"}
        yield {"type": "function_call", **named, **call["function"]}


def response_events(answer: Mapping[str, Any]) -> Iterator[str]:
    """The same as events; a reply comes whole."""
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
