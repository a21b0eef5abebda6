"""Protocol between trainer and reward service: OpenRLHF's, in both directions.

    POST /get_reward  {"query": ["3+4=7"], "prompts": ["3+4="], "labels": ["7"]}
    200               {"rewards": [1.0], "acc_rewards": [1.0], "scores": [1.0], "failed": [0.0]}

Every key of an answer is a list with one number per item: OpenRLHF's clients convert all of them to tensors. Our
client also sends `"explain": true`, which others ignore, and gets the causes of failures:

    200               {"rewards": [null], "parts": [{}], "failures": [{"cause": "hang", "detail": "..."}]}

Two optional keys for reward models: `"truncated": [true]` for a completion cut by the length limit, and
`"messages": [[{"role": "user", "content": "3+4?"}]]`, the chat before the policy's template rendered it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import parse_prompt
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.rewards.results import Failure, FailureCause, RewardItem, RewardResult
from slurm_rl.rewards.values import keep_numbers, read_number, show

_KEYS = {"arithmetic": "acc_rewards", "math": "acc_rewards", "code": "acc_rewards", "format": "format_rewards"}
"""Verifier name to the key of its score in OpenRLHF's answers."""
_CAUSES = frozenset(get_args(FailureCause))
_LONGEST_DETAIL = 1000


class RequestError(ConfigError):
    """A request that cannot be answered; `status` is the HTTP status."""

    def __init__(self, rule: str, *, status: int = 422, **words: Any) -> None:
        super().__init__(rule, **words)
        self.status = status


@dataclass(frozen=True)
class ScoreRequest:
    queries: list[str]
    """Prompt followed by completion."""
    prompts: list[str] | None
    labels: list[str] | None
    """Reference answers; None when the client sends none."""
    explain: bool
    truncated: list[bool] | None = None
    """None when the client does not say."""
    messages: list[list[dict[str, Any]] | None] | None = None
    """Chats before they were rendered; None where the client sends none."""


def build_request(items: Sequence[RewardItem]) -> dict[str, Any]:
    body = {
        "query": [item.prompt + item.completion for item in items],
        "prompts": [item.prompt for item in items],
        "labels": [item.answer for item in items],
        "truncated": [item.truncated for item in items],
        "explain": True,
    }
    chats = [item.messages for item in items]
    return body if all(chat is None for chat in chats) else {**body, "messages": chats}


def parse_request(body: bytes) -> ScoreRequest:
    """Parse a request; raise RequestError, 400 if it is not JSON and 422 if it does not follow the protocol."""
    try:
        tree = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            "the body must be JSON",
            status=400,
            seen=f"{type(error).__name__}: {str(error)[:200]}",
            action='send {"query": [...], "prompts": [...], "labels": [...]}',
        ) from None
    if not isinstance(tree, dict):
        raise RequestError("the body must be a JSON object", status=400, seen=show(tree))
    queries = _texts(tree, "query", None)
    if queries is None:
        raise RequestError("the request must have the key 'query'", seen=f"the keys {show(sorted(tree))}")
    count = len(queries)
    return ScoreRequest(
        queries,
        _texts(tree, "prompts", count),
        _texts(tree, "labels", count),
        tree.get("explain") is True,
        _list(tree, "truncated", count, "true or false", lambda value: isinstance(value, bool)),
        _list(tree, "messages", count, "a list of chat messages, or null", _is_chat),
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _is_chat(value: Any) -> bool:
    return value is None or (isinstance(value, list) and isinstance(parse_prompt(value), list))


def _texts(tree: Mapping[str, Any], key: str, length: int | None) -> list[str] | None:
    return _list(tree, key, length, "a string", lambda value: isinstance(value, str))


def _list(
    tree: Mapping[str, Any], key: str, length: int | None, wanted: str, fits: Callable[[Any], bool]
) -> list[Any] | None:
    values = tree.get(key)
    if values is None:
        return None
    if not isinstance(values, list):
        raise RequestError(f"{key!r} must be a list, each of it {wanted}", seen=show(values))
    for position, value in enumerate(values):
        if not fits(value):
            raise RequestError(f"{key}[{position}] must be {wanted}", seen=show(value))
    if length is not None and len(values) != length:
        raise RequestError(f"{key!r} must be as long as 'query', {length}", seen=len(values))
    return values


def build_answer(results: Sequence[RewardResult], *, explain: bool, failure_reward: float) -> dict[str, Any]:
    """Return the JSON body with the rewards; failed items get `failure_reward`, for clients that cannot read causes."""
    if explain:
        return {
            "rewards": [result.value for result in results],
            "parts": [result.parts for result in results],
            "failures": [
                None if result.failure is None else {"cause": result.failure, "detail": result.detail}
                for result in results
            ],
        }
    answer: dict[str, Any] = {
        "rewards": [failure_reward if result.value is None else result.value for result in results]
    }
    for name in dict.fromkeys(name for result in results for name in result.parts):
        key = _KEYS.get(name, name)
        # A function's own reward is under `rewards`; OpenRLHF logs each key, and has a `reward` of its own.
        if key not in answer and name != "reward":
            answer[key] = [result.parts.get(name, 0.0) for result in results]
    if "acc_rewards" in answer:
        answer.setdefault("scores", answer["acc_rewards"])
    answer["failed"] = [float(result.failure is not None) for result in results]
    return answer


def parse_answer(body: bytes, items: Sequence[RewardItem]) -> list[RewardResult]:
    """Parse the answer of a service; other lists of the right length become parts of the results under their name.

    Raises:
        RewardError: the answer is invalid, or has another number of rewards.
    """
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        raise RewardError("a reward service must answer with JSON", seen=show(body[:200])) from None
    rewards = tree.get("rewards") if isinstance(tree, dict) else None
    if not isinstance(rewards, list) or len(rewards) != len(items):
        seen = f"{len(rewards)} of them" if isinstance(rewards, list) else show(tree)
        raise RewardError(f"a reward service must answer with {len(items)} 'rewards'", seen=seen)
    parts = _read_parts(tree, len(items))
    failures = tree.get("failures")
    if not isinstance(failures, list) or len(failures) != len(items):
        failures = [None] * len(items)
    return [_build_result(item, *told) for item, *told in zip(items, rewards, parts, failures, strict=True)]


def _build_result(item: RewardItem, reward: Any, parts: dict[str, float], failure: Any) -> RewardResult:
    if isinstance(failure, dict):
        cause = failure.get("cause")
        known = cast(FailureCause, cause) if isinstance(cause, str) and cause in _CAUSES else "service"
        return Failure(known, _as_text(failure.get("detail", ""))).result(item)
    try:
        value = read_number(reward)
    except ValueError as error:
        return Failure("bad score", f"the service returned {error}").result(item)
    return RewardResult(item=item, value=value, parts=parts)


def _as_text(detail: Any) -> str:
    return shorten(detail, _LONGEST_DETAIL) if isinstance(detail, str) else show(detail)


def _read_parts(tree: Mapping[str, Any], num_items: int) -> list[dict[str, float]]:
    told = tree.get("parts")
    if isinstance(told, list) and len(told) == num_items and all(isinstance(parts, dict) for parts in told):
        return [keep_numbers(parts) for parts in told]
    extra = tree.get("extra_logs")
    columns = {**tree, **(extra if isinstance(extra, dict) else {})}
    lists = {
        name: values
        for name, values in columns.items()
        if name != "rewards" and isinstance(values, list) and len(values) == num_items
    }
    return [keep_numbers({name: values[place] for name, values in lists.items()}) for place in range(num_items)]
