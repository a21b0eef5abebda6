"""The newer of OpenAI's two interfaces, `POST /v1/responses`: the same dialogue in other words.

{"instructions": "Be short.", "input": "3+4=", "max_output_tokens": 4}
{"previous_response_id": "resp_...", "input": [{"role": "user", "content": "and 5+1?"}]}
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_rl.data.lines import shorten
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
    read_max_tokens,
)
from slurm_rl.rewards.protocol import RequestError

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
    messages = [parse_item(item) for item in items if not _is_thinking(item)]
    return ReplyRequest(
        messages=[*head, *(dialogues[before] if before is not None else []), *messages],
        max_tokens=read_max_tokens(tree.get("max_output_tokens"), rule),
        stream=read_flag(tree, "stream"),
    )


def parse_item(item: Any) -> Message:
    """A message of the input, the policy's own among them.

    Raises:
        RequestError: it is of another kind.
    """
    if isinstance(item, dict) and item.get("type", "message") != "message":
        raise _refuse("an item of the input must be a message", item.get("type"))
    return parse_message(item)


def _is_thinking(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def response_answer(request: ReplyRequest, said: Said, identity: str, rule: SamplingRule) -> dict[str, Any]:
    """The body of `POST /v1/responses`."""
    is_cut = said.reply.truncated
    part = {"type": "output_text", "text": said.reply.text, "annotations": [], "logprobs": []}
    status = "incomplete" if is_cut else "completed"
    message = {"type": "message", "id": f"msg_{identity}", "status": status, "role": "assistant", "content": [part]}
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
        "output": [message],
        "parallel_tool_calls": False,
        "temperature": rule.temperature,
        "top_p": rule.top_p,
        "tool_choice": "none",
        "tools": [],
        "max_output_tokens": request.max_tokens,
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        },
    }


def response_events(answer: Mapping[str, Any]) -> Iterator[str]:
    """The same as events; a reply comes whole."""
    message = answer["output"][0]
    part, text = message["content"][0], message["content"][0]["text"]
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    where = {"output_index": 0, "item_id": message["id"], "content_index": 0}
    empty = {**message, "status": "in_progress", "content": []}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        (
            "response.output_item.added",
            {"output_index": 0, "item": empty},
        ),
        ("response.content_part.added", {**where, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**where, "delta": text, "logprobs": []}),
        ("response.output_text.done", {**where, "text": text, "logprobs": []}),
        ("response.content_part.done", {**where, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": message}),
        (f"response.{answer['status']}", {"response": dict(answer)}),
    ]
    for number, (kind, tree) in enumerate(events):
        yield f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **tree})}\n\n"


def _refuse(rule: str, seen: Any) -> RequestError:
    return RequestError(rule, seen=shorten(repr(seen)), action="correct the request", status=400)
