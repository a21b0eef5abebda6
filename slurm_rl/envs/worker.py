"""Environment process: one process with many environment instances.

Only plain values return to the trainer: exceptions become text, and steps are validated.
"""

import asyncio
import os
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from msgspec import Raw

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.envs.environment import Reply, Row, Step
from slurm_rl.envs.facts import Refused, read_facts
from slurm_rl.envs.steps import Answer, Outcome, Said, check_step, digest_step, encode, pack_answer
from slurm_rl.envs.tools import MakeToolEnvironment, resolve
from slurm_rl.node.processes import become_subreaper
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import describe_error, show
from slurm_rl.run_dir.wire import LINGER_S, Wire


class Snapshot(NamedTuple):
    num_replies: int
    data: bytes


class Call(NamedTuple):
    """A reply for the environment of its episode."""

    episode: str
    row: Row
    seed: int
    replies: Sequence[Reply]
    """All replies of the episode, the newest last; a new process replays the earlier ones."""
    expected: Sequence[int] = ()
    """Checksums of the steps of the first replies, which a replay must reproduce."""
    snapshot: Snapshot | None = None


class NextCall(NamedTuple):
    """A call for an environment that the process holds. It is sent as a plain tuple, because pickling class names would
    take most of the time."""

    episode: str
    reply: Reply


_REPLY_FIELDS = [one.name for one in fields(Reply)]


def write_call(call: Call, *, is_held: bool) -> Call | tuple[Any, ...]:
    """Return the call as sent to a process, with or without the instance."""
    return (call.episode, *vars(call.replies[-1]).values()) if is_held else call


def read_call(episode: str, *values: Any) -> NextCall:
    """Return the call of a tuple of `write_call`."""
    return NextCall(episode, Reply(**dict(zip(_REPLY_FIELDS, values, strict=True))))


class Begun(Protocol):
    """A number in memory that two processes share."""

    value: int


def serve(end: socket.socket, num_begun: Begun, config: EnvironmentConfig, schemas: Sequence[dict[str, Any]]) -> None:
    """Answer calls until the connection closes. Lists of calls arrive at any time; a plain name releases that episode.

    Args:
        num_begun: shared counter of started calls (they start in order), readable after a crash or hang.
    """
    become_subreaper()  # so that the pool finds child processes of the environments
    wire = Wire(end, encode=encode)
    spec = config.name or config.tools or ""
    try:
        make = MakeToolEnvironment.of(config, schemas) if config.name is None else load_function(spec)
        facts = read_facts(make, spec)
    except BaseException as error:
        facts = Refused("it must name a file that can be imported", f"{spec}: {_describe(error)}", "mend it")
    if isinstance(facts, Refused):
        wire.send(Said(refused=Refused(*map(_as_unicode, facts))))
        return
    wire.send(Said(facts=facts))
    with asyncio.Runner() as runner:
        worlds = Worlds(make, config.timeout_s, wire, num_begun, facts.resume)
        runner.run(worlds.serve())


@dataclass
class Worlds:
    """The environments of one process, by episode."""

    make: Callable[[], Any]
    timeout_s: float
    wire: Wire
    num_begun: Begun
    resume: str = "replay"
    _held: dict[str, Any] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _ended: list[Raw] = field(default_factory=list)
    _sent_at: float = 0.0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                while True:
                    for asked in self.wire.receive():
                        loop.call_soon_threadsafe(self.take, asked)
            except BaseException:
                os._exit(0)  # also from an endless step: its result is no longer needed

        threading.Thread(target=read, name="calls", daemon=True).start()
        await loop.create_future()

    def take(self, asked: Sequence[Call | tuple[Any, ...] | str]) -> None:
        """Begin calls, or release environments; awaiting environments run concurrently."""
        for one in asked:
            if isinstance(one, str):
                self._held.pop(one, None)
                continue
            call = one if isinstance(one, Call) else read_call(*one)
            task = asyncio.get_running_loop().create_task(self.answer(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def answer(self, call: Call | NextCall) -> None:
        self._send()  # finished calls do not wait for a slow one
        self.num_begun.value += 1
        outcome: Outcome
        snapshot = None
        try:
            # Not `wait_for`, which would begin all before the first plain function has returned: the hanging one is the
            # one that began last.
            async with asyncio.timeout(self.timeout_s):
                outcome = check_step(await self._step(call))
                if self.resume == "snapshot" and isinstance(outcome, Step) and not outcome.done:
                    snapshot = _check_snapshot(await resolve(self._held[call.episode].snapshot()))
        except TimeoutError:
            outcome = Failure("hang", f"no step within {self.timeout_s:g} s")
        except _Failed as failed:
            outcome = failed.failure
        except (SystemExit, KeyboardInterrupt) as end:
            self._send()
            code = getattr(end, "code", None)
            os._exit(code if isinstance(code, int) else 1)  # in order it would end the others' steps with words
        except BaseException as error:  # whatever an environment raises, its call has an answer
            outcome = Failure("exception", _describe(error))
        if isinstance(outcome, Failure) or outcome.done:
            self._held.pop(call.episode, None)
        self._say(Answer(call.episode, outcome, snapshot))

    def _say(self, answer: Answer) -> None:
        """Send at once; after a recent message, collect answers for some milliseconds."""
        self._ended.append(pack_answer(answer))
        loop = asyncio.get_running_loop()
        if loop.time() - self._sent_at >= LINGER_S:
            self._send()
        elif len(self._ended) == 1:
            loop.call_at(self._sent_at + LINGER_S, self._send)

    def _send(self) -> None:
        if not self._ended:
            return
        answers, self._ended = self._ended, []
        self._sent_at = asyncio.get_running_loop().time()
        try:
            self.wire.send(Said(answers))
        except OSError:
            os._exit(1)  # an environment has closed our connection

    async def _step(self, call: Call | NextCall) -> Any:
        if isinstance(call, NextCall):
            return await resolve(self._held[call.episode].step(call.reply))
        world = await self._bring_back(call)
        self._held[call.episode] = world
        return await resolve(world.step(call.replies[-1]))

    async def _bring_back(self, call: Call) -> Any:
        """Restore the environment as it was before the newest reply."""
        world = self.make()
        if call.snapshot is not None:
            await resolve(world.restore(call.row, call.snapshot.data))
        elif len(call.replies) > 1 and self.resume == "restart":
            raise _Failed("crash", 'its instance was lost with its process, and resume="restart" does not restore it')
        else:
            await resolve(world.reset(call.row, call.seed))
        first = 0 if call.snapshot is None else call.snapshot.num_replies
        for turn in range(first, len(call.replies) - 1):
            step = check_step(await resolve(world.step(call.replies[turn])))
            if isinstance(step, Failure):
                raise _Failed(step.cause, f"as its replies were played again: {step.detail}")
            if turn < len(call.expected) and digest_step(step) != call.expected[turn]:
                said = show(step.observation)
                raise _Failed("exception", f"turn {turn + 1}, played again, has another step than before; now {said}")
        return world


class _Failed(Exception):
    def __init__(self, cause: Any, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(cause, detail)


def _check_snapshot(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise _Failed("bad score", f"snapshot() must return bytes; got {show(data)}")
    return bytes(data)


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return describe_error(error) + _as_unicode(where)


def _as_unicode(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
