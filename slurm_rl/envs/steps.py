"""Validate steps and convert them to plain values before they leave their process."""

import json
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, get_args

import msgspec

from slurm_rl.envs.environment import Step, ToolCall, ToolError
from slurm_rl.envs.facts import Facts, Refused
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import describe_error, is_name, read_number, read_numbers, show

_LONGEST_CHARS = 1_000_000
"""Largest observation, in characters."""
_encode = json.JSONEncoder(sort_keys=True).encode
_encode_finite = msgspec.json.Encoder(order="sorted").encode
"""In a quarter of the time."""
_ERRORS = (None, *get_args(ToolError))

Outcome: TypeAlias = Step | Failure


def digest_step(step: Step) -> int:
    """Return a checksum of a step.

    >>> digest_step(Step("more", 1.0)) == digest_step(Step("more", 1.0)) != digest_step(Step("more", 0.5))
    True
    """
    said = [step.observation, step.reward, step.done, dict(step.scores)]
    if (step.agent, step.begins, step.rewards) != (None, False, {}):
        said += [step.agent, step.begins, dict(step.rewards)]
    try:
        text = _encode_finite(said)
    except (UnicodeEncodeError, OverflowError):  # half a surrogate pair or an int above 64 bits, in a message
        text = _encode(said).encode()
    return zlib.crc32(text)


def check_step(step: Any) -> Outcome:
    """Return a step of plain values, or the reason why it is invalid.

    >>> check_step(Step("more", reward=float("nan")))
    Failure(cause='bad score', detail='Step.reward must be a finite number or None; got nan')
    """
    if not isinstance(step, Step):
        return _nonsense("step(reply) must return a slurm_rl.envs.environment.Step", step)
    observation = _plain_observation(step.observation)
    if observation is None:
        rule = f"Step.observation must be text, or messages with a role and a content, of {_LONGEST_CHARS:,} characters"
        return _nonsense(f"{rule} at the most and valid Unicode", step.observation)
    for name, flag in (("done", step.done), ("begins", step.begins)):
        if not isinstance(flag, bool):
            return _nonsense(f"Step.{name} must be True or False", flag)
    if not (step.agent is None or step.agent == "" or is_name(step.agent)):
        return _nonsense("Step.agent must be a name or None", step.agent)
    calls = _plain_calls(step.calls)
    if calls is None:
        return _nonsense("Step.calls must be a tuple of ToolCall with valid Unicode", step.calls)
    agent = None if step.agent is None else str.__str__(step.agent)
    try:
        rule = "Step.reward must be a finite number or None"
        reward = None if step.reward is None else read_number(step.reward)
        rule = "Step.scores must be finite numbers by name"
        scores = read_numbers(step.scores)
        rule = "Step.rewards must be finite numbers by agent"
        rewards = _read_rewards(step.rewards)
    except ValueError as error:
        return Failure("bad score", f"{rule}; got {error}")
    return Step(observation, reward, step.done, scores, calls, agent, step.begins, rewards)


def _read_rewards(rewards: Any) -> dict[str, float]:
    """Return rewards by agent; the agent that reads the row's prompt has the name ""."""
    named = {name: value for name, value in rewards.items() if name != ""} if isinstance(rewards, Mapping) else rewards
    first = {"": read_number(rewards[""])} if isinstance(rewards, Mapping) and "" in rewards else {}
    return first | read_numbers(named)


def _plain_calls(calls: Any) -> tuple[ToolCall, ...] | None:
    """Return copies of the calls, of the class itself and of plain text; None if one is something else."""
    if not isinstance(calls, tuple):
        return None
    plain = []
    for call in calls:
        if not isinstance(call, ToolCall) or call.error not in _ERRORS:
            return None
        texts = (call.name, call.arguments, call.result)
        if not all(isinstance(text, str) for text in texts):
            return None
        name, arguments, result = (str.__str__(text).encode("utf-8", "replace").decode() for text in texts)
        plain.append(ToolCall(name, arguments, result, call.error))
    return tuple(plain)


def _plain_observation(value: Any) -> str | list[dict[str, Any]] | None:
    """Return `value` as plain data; None if it is not plain."""
    try:
        if isinstance(value, str):
            text = str.__str__(value)
            text.encode()
            return text if len(text) <= _LONGEST_CHARS else None
        if not isinstance(value, list) or not all(map(_is_message, value)):
            return None
        written = json.dumps(value, allow_nan=False)
        messages: list[dict[str, Any]] = json.loads(written)
        for message in messages:
            message["content"].encode()
        return messages if len(written) <= _LONGEST_CHARS else None
    except (ValueError, TypeError, RecursionError):
        return None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _nonsense(rule: str, seen: Any) -> Failure:
    return Failure("bad score", f"{rule}; got {show(seen)}")


class Answer(NamedTuple):
    episode: str
    outcome: Outcome
    snapshot: bytes | None = None
    """State after the call, with resume="snapshot"."""


class _Packed(msgspec.Struct, array_like=True):
    """An answer; it has either a step or a failure."""

    episode: str
    step: Step | None
    failure: Failure | None
    snapshot: bytes | None


class Said(msgspec.Struct, array_like=True):
    answers: list[msgspec.Raw] = []
    facts: Facts | None = None
    refused: Refused | None = None

    def read(self) -> list[Answer]:
        """Return the answers; raises ValueError or msgspec.DecodeError for invalid ones."""
        return [_unpack(_decode_answer(raw)) for raw in self.answers]


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Said).decode
_decode_answer = msgspec.msgpack.Decoder(_Packed).decode


def pack_answer(answer: Answer) -> msgspec.Raw:
    """Return an answer as bytes. A step that cannot be encoded (for example an int above 64 bits) is a failure."""
    step, failure = (answer.outcome, None) if isinstance(answer.outcome, Step) else (None, answer.outcome)
    try:
        return msgspec.Raw(encode(_Packed(answer.episode, step, failure, answer.snapshot)))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        failure = Failure("bad score", f"the step cannot be sent: {describe_error(error)}")
        return msgspec.Raw(encode(_Packed(answer.episode, None, failure, None)))


def _unpack(packed: _Packed) -> Answer:
    if packed.step is not None and packed.failure is None:
        return Answer(packed.episode, check_step(packed.step), packed.snapshot)
    if packed.failure is None or packed.step is not None:
        raise ValueError("an answer must be a step or a failure")
    return Answer(packed.episode, packed.failure)
