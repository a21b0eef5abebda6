"""The side of the environments that runs in processes of their own: one a process, many worlds in each.

What goes back are plain values alone; an exception is turned into words here, and what a step returns is checked.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any, TypeAlias

from slurm_rl.data.lines import shorten
from slurm_rl.envs.environment import Environment, Reply, Row, Step
from slurm_rl.functions.load import load_function
from slurm_rl.rewards.results import Failure

_SHOWN_CHARS = 200
_LONGEST_CHARS = 1_000_000
"""Of one observation; no context holds more."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A reply on its way to the world of its episode."""

    episode: str
    """Names the episode in its batch."""
    row: Row
    seed: int
    replies: Sequence[Reply]
    """All of the episode, the newest last: whoever has not seen the others plays them first."""


Outcome: TypeAlias = Step | Failure
Message: TypeAlias = tuple[int, Outcome | None]
"""(place of a call, what came of it); None: it begins now."""


def serve(connection: Connection, spec: str, timeout_s: float) -> None:
    """Answer batches of calls until the other side is gone: a message as each begins, one as it ends."""
    try:
        make = load_function(spec)
        connection.send({"replays": getattr(make, "resume", Environment.resume) == "replay"})
    except BaseException as error:
        connection.send(_describe(error))
        return
    worlds = Worlds(make, timeout_s, connection.send)
    with asyncio.Runner() as runner:
        while True:
            try:
                batch = connection.recv()
            except (EOFError, OSError):
                return
            if batch is None:
                worlds.forget()
            else:
                runner.run(worlds.play(batch))


@dataclass
class Worlds:
    """The environments of one process, by episode."""

    make: Callable[[], Any]
    timeout_s: float
    send: Callable[[Message], None]
    _held: dict[str, tuple[Any, int]] = field(default_factory=dict)
    """Environment, and how many replies it has had."""

    def forget(self) -> None:
        """The batch is over."""
        self._held.clear()

    async def play(self, calls: Sequence[Call]) -> None:
        """All at once where the environment waits by `await`; else one after the other."""
        await asyncio.gather(*(self._answer(place, call) for place, call in enumerate(calls)))

    async def _answer(self, place: int, call: Call) -> None:
        self.send((place, None))
        try:
            # Not `wait_for`, which would begin all before the first plain function has returned: who hangs is the
            # one that began last.
            async with asyncio.timeout(self.timeout_s):
                outcome = check_step(await self._step(call))
        except TimeoutError:
            outcome = Failure("hang", f"no step within {self.timeout_s:g} s")
        except Exception as error:
            outcome = Failure("exception", _describe(error))
        if isinstance(outcome, Failure):
            self._held.pop(call.episode, None)
        self.send((place, outcome))

    async def _step(self, call: Call) -> Any:
        world, seen = self._held.get(call.episode, (None, 0))
        if seen != len(call.replies) - 1 or world is None:
            world, seen = self.make(), 0
            await _wait(world.reset(call.row, call.seed))
        step: Any = None
        for reply in call.replies[seen:]:
            step = await _wait(world.step(reply))
        self._held[call.episode] = world, len(call.replies)
        return step


async def _wait(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


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
    reward = None if step.reward is None else float(step.reward)
    return Step(observation, reward, step.done, {str(name): float(value) for name, value in step.scores.items()})


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
    return Failure("bad score", f"{rule}; got {shorten(ascii(seen), _SHOWN_CHARS)}")


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return shorten(f"{type(error).__name__}: {error}", _SHOWN_CHARS) + where
