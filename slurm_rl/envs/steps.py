"""Steps as plain values: what is checked of them before they leave the process of their world."""

from __future__ import annotations

import json
import math
import zlib
from numbers import Real
from typing import Any, TypeAlias

import msgspec

from slurm_rl.data.lines import shorten
from slurm_rl.envs.environment import Step, ToolCall
from slurm_rl.rewards.results import Failure

SHOWN_CHARS = 200
_LONGEST_CHARS = 1_000_000
"""Of one observation; no context holds more."""
_encode = json.JSONEncoder(sort_keys=True).encode
_encode_finite = msgspec.json.Encoder(order="sorted").encode
"""In a quarter of the time."""

Outcome: TypeAlias = Step | Failure


def digest_step(step: Step) -> int:
    """A checksum of all that a step says.

    >>> digest_step(Step("go on", 1.0)) == digest_step(Step("go on", 1.0)) != digest_step(Step("go on", 0.5))
    True
    """
    said = [step.observation, step.reward, step.done, dict(step.scores)]
    if (step.agent, step.begins, step.rewards) != (None, False, {}):
        said += [step.agent, step.begins, dict(step.rewards)]
    try:
        text = _encode_finite(said)
    except UnicodeEncodeError:  # half a surrogate pair, such as a score's name may have
        text = _encode(said).encode()
    return zlib.crc32(text)


def check_step(step: Any) -> Outcome:
    """A step of plain values, or why it is none.

    >>> check_step(Step("go on", reward=float("nan")))
    Failure(cause='bad score', detail='Step.reward must be a finite number or None; got nan')
    """
    if not isinstance(step, Step):
        return _nonsense("step(reply) must return a slurm_rl.envs.environment.Step", step)
    observation = _plain_observation(step.observation)
    if observation is None:
        rule = f"Step.observation must be text, or messages with a role and a content, of {_LONGEST_CHARS:,} characters"
        return _nonsense(f"{rule} at the most and valid Unicode", step.observation)
    if step.reward is not None and not _is_number(step.reward):
        return _nonsense("Step.reward must be a finite number or None", step.reward)
    if not isinstance(step.done, bool):
        return _nonsense("Step.done must be True or False", step.done)
    if not all(isinstance(name, str) and _is_number(value) for name, value in dict(step.scores).items()):
        return _nonsense("Step.scores must be finite numbers by name", step.scores)
    if not isinstance(step.calls, tuple) or not all(isinstance(call, ToolCall) for call in step.calls):
        return _nonsense("Step.calls must be a tuple of ToolCall", step.calls)
    if not all(isinstance(name, str) and _is_number(value) for name, value in dict(step.rewards).items()):
        return _nonsense("Step.rewards must be finite numbers by agent", step.rewards)
    if not (step.agent is None or isinstance(step.agent, str)) or not isinstance(step.begins, bool):
        return _nonsense("Step.agent must be a name or None, and Step.begins True or False", (step.agent, step.begins))
    reward = None if step.reward is None else float(step.reward)
    scores, rewards = (
        {str(name): float(value) for name, value in numbers.items()} for numbers in (step.scores, step.rewards)
    )
    agent = None if step.agent is None else str.__str__(step.agent)
    return Step(observation, reward, step.done, scores, step.calls, agent, step.begins, rewards)


def _plain_observation(value: Any) -> str | list[dict[str, Any]] | None:
    """As the trainer can read it, which knows no class of the user's; None of what is none."""
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


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _nonsense(rule: str, seen: Any) -> Failure:
    return Failure("bad score", f"{rule}; got {shorten(ascii(seen), SHOWN_CHARS)}")
