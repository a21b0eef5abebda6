"""Parse requests in OpenAI's format: supported, refused and ignored keys.

    {"model": "policy", "messages": [{"role": "user", "content": "3+4="}], "max_tokens": 4, "n": 2}

A key that would change sampling differently from the run is refused by name; ignoring it would go unnoticed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message
from slurm_rl.rewards.protocol import RequestError
from slurm_rl.rollout.endpoint.tools import (
    CallBody,
    Schema,
    convert,
    name_results,
    parse_call,
    parse_tools,
    reads_calls,
)
from slurm_rl.rollout.endpoint.tools import refuse as _refuse

MODEL = "policy"
"""Model name in answers; requests may use any name."""
_MOST_REPLIES = 128
_WITHOUT_EFFECT = frozenset(
    {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
    | {"prompt_cache_retention", "seed", "stream_options", "reasoning_effort", "reasoning"}
    | {"include", "truncation"}
)
"""Ignored keys. Seeds are derived from the run's."""
_MUST_BE = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "background": (False,),
}
"""Key to its neutral values; null is always neutral."""


_Count = Annotated[int, msgspec.Meta(ge=1)]
_Stop = Annotated[str, msgspec.Meta(min_length=1)]


class TextPart(msgspec.Struct):
    """A part of a message's content; others than text are refused."""

    type: Literal["text", "input_text", "output_text"]
    text: str = ""


class MessageBody(msgspec.Struct):
    """A message of either interface."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[CallBody] | None = None


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class Body(msgspec.Struct):
    """The keys that both interfaces share."""

    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class ChatBody(Body, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[MessageBody], msgspec.Meta(min_length=1)]
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=_MOST_REPLIES)] | None = None
    stop: str | list[_Stop] | None = None
    logprobs: bool | None = None
    stream_options: StreamOptions | None = None


@dataclass(frozen=True)
class SamplingRule:
    """How the run samples rows of a source, which is how it trains; a request may say the same or nothing."""

    temperature: float
    top_p: float
    turn_tokens: int
    """Longest reply."""
    overrule: bool = False
    """Other values in a request are ignored instead of refused."""


@dataclass(frozen=True)
class ReplyRequest:
    """A parsed request of either interface."""

    messages: list[Message]
    max_tokens: int
    """Limit of one reply; at most the run's."""
    num_replies: int = 1
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    with_usage: bool = False
    """The stream ends with the counts of tokens."""
    tools: tuple[Schema, ...] = ()
    """Tools in the prompt."""
    reads_calls: bool = True
    """Parse tool calls; False: the reply is plain text."""
    one_call: bool = False
    """At most one call of a reply is handed on."""
    is_full_length: bool = True
    """`max_tokens` is the run's."""

    @property
    def variant(self) -> str:
        """Properties that change the reply besides its prompt; "" for the run's defaults."""
        own = [*([] if self.is_full_length else [self.max_tokens]), *sorted(self.stop)]
        own += ["text"] if self.tools and not self.reads_calls else []
        return json.dumps(own) if own else ""


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises:
        RequestError: it is none, or holds NaN or text that is not Unicode.
    """
    try:
        tree = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise _refuse(f"a request must be JSON of valid Unicode ({shorten(str(error))})", body[:80]) from None
    if not isinstance(tree, dict):
        raise _refuse("a request must be a JSON object", body[:80])
    return tree


def parse_chat(tree: Mapping[str, Any], rule: SamplingRule) -> ReplyRequest:
    """Parse a request for a chat completion.

    Raises:
        RequestError: invalid types, or an unsupported option.
    """
    body = convert(tree, ChatBody)
    check_keys(tree, body, rule)
    return ReplyRequest(
        messages=name_results([parse_message(message) for message in body.messages]),
        **read_length(body.max_completion_tokens or body.max_tokens, rule),
        num_replies=body.n or 1,
        stop=_read_stop(body.stop),
        logprobs=bool(body.logprobs),
        stream=bool(body.stream),
        with_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        **read_tools(body, rule),
    )


def read_tools(body: Body, rule: SamplingRule) -> dict[str, Any]:
    """Return the tool options of a request as fields of `ReplyRequest`."""
    return {
        "tools": parse_tools(body.tools),
        "reads_calls": reads_calls(body.tool_choice, overrule=rule.overrule),
        "one_call": body.parallel_tool_calls is False,
    }


def check_keys(tree: Mapping[str, Any], body: Body, rule: SamplingRule) -> None:
    """Refuse keys that would change the sampling, and keys that neither the body's type nor this page has."""
    for key in ("temperature", "top_p"):
        _check_sampling(key, getattr(body, key), rule)
    for key, value in tree.items():
        if key in _MUST_BE:
            if value is not None and value not in _MUST_BE[key]:
                raise _refuse(f"{key} must be left out of requests to a policy that is trained", value)
        elif key not in body.__struct_fields__ and key not in _WITHOUT_EFFECT and value is not None:
            raise _refuse("a request must have keys that this endpoint knows", key)


def _check_sampling(key: str, value: float | None, rule: SamplingRule) -> None:
    ours = rule.temperature if key == "temperature" else rule.top_p
    if value is None or rule.overrule or value == ours:
        return
    raise RequestError(
        f"{key} must be rollout.{key}, or that of the row's source, {ours:g}: a policy is trained by how it is sampled",
        seen=shorten(repr(value)),
        action=f"leave {key} out of the request, or set env.ignore_request_sampling=true",
        status=400,
    )


def parse_message(body: MessageBody) -> Message:
    """Return a message with its content as text."""
    content = body.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    kept: Message = {
        key: value for key, value in (("name", body.name), ("tool_call_id", body.tool_call_id)) if value is not None
    }
    if body.tool_calls:
        kept["tool_calls"] = [parse_call(call) for call in body.tool_calls]
    return {"role": "system" if body.role == "developer" else body.role, "content": content or "", **kept}


def read_length(value: int | None, rule: SamplingRule) -> dict[str, Any]:
    """Return how long a reply may be, as fields of `ReplyRequest`."""
    if value is None:
        return {"max_tokens": rule.turn_tokens}
    return {"max_tokens": min(value, rule.turn_tokens), "is_full_length": value >= rule.turn_tokens}


def _read_stop(value: str | list[str] | None) -> tuple[str, ...]:
    return ((value,) if value else ()) if isinstance(value, str) else tuple(value or ())
