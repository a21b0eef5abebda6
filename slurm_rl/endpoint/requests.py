"""Requests to the policy, in OpenAI's words: what is taken, what is refused, and what changes nothing here.

    {"model": "policy", "messages": [{"role": "user", "content": "3+4="}], "max_tokens": 4, "n": 2}

A key that would change what is sampled, and that the run does not sample by, is refused by name: an answer that is
something else than what was asked for would be found out by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message
from slurm_rl.endpoint.tools import Schema, name_results, parse_calls, parse_tools, reads_calls
from slurm_rl.endpoint.tools import refuse as _refuse
from slurm_rl.rewards.protocol import RequestError

MODEL = "policy"
"""Its name in answers; a request may name any."""
ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_REPLIES = 128
_WITHOUT_EFFECT = frozenset(
    {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
    | {"prompt_cache_retention", "seed", "stream_options", "reasoning_effort", "reasoning"}
    | {"include", "truncation", "text"}
)
"""What a provider keeps books by, and wishes. A seed follows from the run's; `text` is looked at by its reader."""
_OF_TOOLS = {"tools", "tool_choice", "parallel_tool_calls"}
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
"""Key to the values that say nothing; null always does."""


@dataclass(frozen=True)
class SamplingRule:
    """How the run samples rows of a source, which is how it trains; a request may say the same or nothing."""

    temperature: float
    top_p: float
    turn_tokens: int
    """Longest reply."""
    overrule: bool = False
    """What a request says otherwise is not refused, and has no effect."""


@dataclass(frozen=True)
class ReplyRequest:
    """What a program asks for, of either of the two interfaces."""

    messages: list[Message]
    max_tokens: int
    """Of one reply; at most the run's."""
    num_replies: int = 1
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    with_usage: bool = False
    """The stream ends with the counts of tokens."""
    tools: tuple[Schema, ...] = ()
    """That the policy is told of."""
    reads_calls: bool = True
    """Of tools; False: what the policy writes is text, whatever it is."""
    one_call: bool = False
    """At most one call of a reply is handed on."""
    is_full_length: bool = True
    """`max_tokens` is the run's."""

    @property
    def variant(self) -> str:
        """What decides its replies besides what the policy reads; "" where that is how the run samples."""
        own = [*([] if self.is_full_length else [self.max_tokens]), *sorted(self.stop)]
        own += ["text"] if self.tools and not self.reads_calls else []
        return json.dumps(own) if own else ""


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        RequestError: it is none.
    """
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise _refuse("a request must be a JSON object", body[:80])
    return tree


def parse_chat(tree: Mapping[str, Any], rule: SamplingRule) -> ReplyRequest:
    """A request for a chat completion.

    Raises:
        RequestError: what is asked for is not what the run can give.
    """
    known = {"messages", "max_tokens", "max_completion_tokens", "n", "stop", "logprobs", "stream"}
    check_keys(tree, rule, known)
    found = tree.get("messages")
    if not isinstance(found, list) or not found:
        raise _refuse("messages must be a list with a message at least", found)
    asked = tree.get("max_completion_tokens") or tree.get("max_tokens")
    return ReplyRequest(
        messages=name_results([parse_message(message) for message in found]),
        **read_length(asked, rule),
        num_replies=_read_count(tree.get("n")),
        stop=_read_stop(tree.get("stop")),
        logprobs=read_flag(tree, "logprobs"),
        stream=read_flag(tree, "stream"),
        with_usage=bool((tree.get("stream_options") or {}).get("include_usage")),
        **read_tools(tree, rule),
    )


def read_tools(tree: Mapping[str, Any], rule: SamplingRule) -> dict[str, Any]:
    """What a request of either interface says of tools, as fields of `ReplyRequest`."""
    return {
        "tools": parse_tools(tree.get("tools")),
        "reads_calls": reads_calls(tree.get("tool_choice"), overrule=rule.overrule),
        "one_call": tree.get("parallel_tool_calls") is False,
    }


def check_keys(tree: Mapping[str, Any], rule: SamplingRule, known: set[str]) -> None:
    """Refuse what would change the sampling, and what nobody here reads."""
    for key, value in tree.items():
        if key in ("temperature", "top_p"):
            _check_sampling(key, value, rule)
        elif key in _MUST_BE:
            if value is not None and value not in _MUST_BE[key]:
                raise _refuse(f"{key} must be left out of requests to a policy that is trained", value)
        elif key not in known | _OF_TOOLS | _WITHOUT_EFFECT and value is not None:
            raise _refuse("a request must have keys that this endpoint knows", key)


def _check_sampling(key: str, value: Any, rule: SamplingRule) -> None:
    ours = rule.temperature if key == "temperature" else rule.top_p
    if value is None or rule.overrule or value == ours:
        return
    raise RequestError(
        f"{key} must be rollout.{key}, or that of the row's source, {ours:g}: a policy is trained by how it is sampled",
        seen=shorten(repr(value)),
        action=f"leave {key} out of the request, or set env.overrule_sampling=true",
        status=400,
    )


def parse_message(value: Any) -> Message:
    """A message with its content as text.

    Raises:
        RequestError: it is none, or holds something else than text.
    """
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise _refuse(f"a message must have a role of {', '.join(ROLES)}", value)
    content = value.get("content")
    if isinstance(content, list):
        kinds = {"text", "input_text", "output_text"}
        if not all(isinstance(part, dict) and part.get("type") in kinds for part in content):
            raise _refuse("a message must be text alone", content)
        content = "".join(str(part.get("text", "")) for part in content)
    if content is not None and not isinstance(content, str):
        raise _refuse("a message's content must be text", content)
    try:
        (content or "").encode()
    except UnicodeEncodeError:
        raise _refuse("a message must be valid Unicode", content) from None
    role = "system" if value["role"] == "developer" else value["role"]
    kept = {key: value[key] for key in ("name", "tool_call_id") if value.get(key) is not None}
    if calls := parse_calls(value.get("tool_calls")):
        kept["tool_calls"] = calls
    return {"role": role, "content": content or "", **kept}


def read_length(value: Any, rule: SamplingRule) -> dict[str, Any]:
    """How long a reply may be, as fields of `ReplyRequest`."""
    if value is None:
        return {"max_tokens": rule.turn_tokens}
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _refuse("max_tokens must be a whole number above 0", value)
    return {"max_tokens": min(value, rule.turn_tokens), "is_full_length": value >= rule.turn_tokens}


def _read_count(value: Any) -> int:
    count = 1 if value is None else value
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_REPLIES:
        raise _refuse(f"n must be 1 to {_MOST_REPLIES}", value)
    return count


def _read_stop(value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(text, str) and text for text in found):
        raise _refuse("stop must be text, or a list of texts", value)
    return tuple(found)


def read_flag(tree: Mapping[str, Any], key: str) -> bool:
    value = tree.get(key)
    if value is not None and not isinstance(value, bool):
        raise _refuse(f"{key} must be true or false", value)
    return bool(value)
