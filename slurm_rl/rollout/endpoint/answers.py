"""Replies of the policy in OpenAI's words: chat completions, whole or as server-sent events."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_rl.rollout.endpoint.conversation import Said
from slurm_rl.rollout.endpoint.requests import MODEL, ReplyRequest


def chat_answer(request: ReplyRequest, said: Sequence[Said], identity: str, tokenizer: Any) -> dict[str, Any]:
    """The body of `POST /v1/chat/completions`, a choice a reply."""
    choices = [
        {
            "index": index,
            "message": {**one.message, "content": _content(one), "refusal": None},
            "logprobs": _logprobs(one, tokenizer) if request.logprobs else None,
            "finish_reason": _why(one),
        }
        for index, one in enumerate(said)
    ]
    head = _head(identity, "chat.completion")
    return {**head, "choices": choices, "usage": usage(said)}


def chat_events(answer: dict[str, Any], *, with_usage: bool) -> Iterator[str]:
    """Return server-sent events; a reply is sent as one delta."""
    head = _head(answer["id"], "chat.completion.chunk")
    for choice in answer["choices"]:
        message, rest = dict(choice["message"]), {"index": choice["index"], "logprobs": choice["logprobs"]}
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
        yield _event({**head, "choices": [{**rest, "delta": message, "finish_reason": None}]})
        end = {**rest, "logprobs": None, "delta": {}, "finish_reason": choice["finish_reason"]}
        yield _event({**head, "choices": [end]})
    if with_usage:
        yield _event({**head, "choices": [], "usage": answer["usage"]})
    yield "data: [DONE]\n\n"


def _content(one: Said) -> str | None:
    """Return null next to calls without text, as OpenAI does."""
    return one.message["content"] or (None if one.message.get("tool_calls") else "")


def _why(one: Said) -> str:
    if one.reply.truncated:
        return "length"
    return "tool_calls" if one.message.get("tool_calls") else "stop"


def usage(said: Sequence[Said]) -> dict[str, int]:
    """Return token counts: the prompt once, and all replies."""
    prompt, replies = len(said[0].place.context), sum(len(one.reply.token_ids) for one in said)
    return {"prompt_tokens": prompt, "completion_tokens": replies, "total_tokens": prompt + replies}


def list_models() -> dict[str, Any]:
    """The body of `GET /v1/models`: there is one."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "slurm_rl"}]}


def _head(identity: str, kind: str) -> dict[str, Any]:
    return {"id": identity, "object": kind, "created": int(time.time()), "model": MODEL}


def _logprobs(said: Said, tokenizer: Any) -> dict[str, Any]:
    """Return the logprob of each sampled token, including the end of turn."""
    pairs = zip(said.reply.token_ids, said.reply.logprobs, strict=True)
    texts = [(tokenizer.decode([token]), logprob) for token, logprob in pairs]
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []} for text, logprob in texts
    ]
    return {"content": content, "refusal": None}


def _event(tree: dict[str, Any]) -> str:
    return f"data: {json.dumps(tree)}\n\n"
