"""User-defined environments for tests: working and misbehaving ones."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

from slurm_rl.envs.environment import Environment, Reply, Row, Step, ToolCall
from slurm_rl.envs.steps import Answer, Said, encode, pack_answer


class Count(Environment):
    """Return the number of replies, and end after row.answer of them."""

    def reset(self, row: Row, seed: int) -> None:
        self.replies: list[str] = []
        self.last = int(row.answer)

    def step(self, reply: Reply) -> Step:
        self.replies.append(reply.text)
        done = len(self.replies) == self.last
        return Step(" ".join(self.replies), 1.0 if done else None, done, {"replies": len(self.replies)})


class Text(str):
    """A class that the trainer cannot import."""

    __slots__ = ()


class Base(BaseException):
    """An exception that `except Exception` does not catch."""


class Unreadable(Exception):
    """An exception with a failing `__str__`."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Marks(ToolCall):
    """Create a file when unpickled."""

    mark = ""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (Path(self.mark),)


def write_to_sockets(data: bytes) -> None:
    """Write into descriptors of other owners, as a faulty library does."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, data)


class Bad(Count):
    """Misbehave as the reply requests."""

    def step(self, reply: Reply) -> Step:
        match reply.text:
            case "raise":
                raise KeyError("no such door")
            case "hang":
                time.sleep(600)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "nothing":
                return None  # type: ignore[return-value]
            case "nan":
                return Step("", float("nan"))
            case "exit":
                sys.exit(3)
            case "os exit":
                os._exit(4)
            case "interrupt":
                raise KeyboardInterrupt
            case "cancel":
                raise asyncio.CancelledError
            case "stop iteration":
                raise StopIteration
            case "recursion":
                return self.step(reply)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "close":
                os.closerange(3, 256)
            case "loop":
                while True:
                    pass
            case "true reward":
                return Step("", True)
            case "base exception":
                raise Base("no ordinary exception")
            case "unreadable exception":
                raise Unreadable
            case "lambda":
                raise ValueError(lambda: None)
            case "forks and dies":
                if os.fork() == 0:
                    time.sleep(20)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)
            case "writes to the wire":
                write_to_sockets(b"\0\0\0\0\0\0\0\4junk")
                time.sleep(600)
            case "answers for another":
                data = encode(Said([pack_answer(Answer("other", Step("x", 1.0, True)))]))
                write_to_sockets(len(data).to_bytes(8, "big") + data)
                time.sleep(600)
            case "child":
                words = [sys.executable, "-c", "import time; time.sleep(600)"]
                return Step(str(subprocess.Popen(words, env={}, start_new_session=True).pid))
            case "own class":
                return Step(Text("mine"))
            case text if text.startswith("call class "):
                call = Marks("add", "{}")
                object.__setattr__(call, "mark", text.removeprefix("call class "))
                return Step("x", calls=(call,))
        return super().step(reply)


class NoReset(Environment):
    def reset(self, row: Row, seed: int) -> None:
        raise RuntimeError("no world today")


class Fleeting(Bad):
    """An environment without snapshots."""

    resume = "restart"


class Slow(Count):
    """Sleep for a limited time, or forever."""

    async def step(self, reply: Reply) -> Step:  # type: ignore[override]
        await asyncio.sleep(600 if reply.text == "wait" else 0.3)
        return super().step(reply)


class Counted(Count):
    """Append to a file once per call, to detect repeated steps."""

    def reset(self, row: Row, seed: int) -> None:
        super().reset(row, seed)
        self.folder = Path(row.prompt)

    def step(self, reply: Reply) -> Step:
        (self.folder / reply.call_id).touch()
        return super().step(reply)


class CountedFleeting(Counted):
    """The same without snapshots."""

    resume = "restart"


class Saved(Counted):
    """The same with snapshot and restore."""

    resume = "snapshot"

    def snapshot(self) -> bytes:
        return json.dumps([str(self.folder), self.last, self.replies]).encode()

    def restore(self, row: Row, data: bytes) -> None:
        folder, self.last, self.replies = json.loads(data)
        self.folder = Path(folder)


class Noted(Counted):
    """Fail at the second of two equal calls."""

    def step(self, reply: Reply) -> Step:
        (self.folder / reply.call_id).touch(exist_ok=False)
        return Count.step(self, reply)


class DiesOnce(Counted):
    """Kill its own process at the first attempt only."""

    def step(self, reply: Reply) -> Step:
        note = self.folder / reply.call_id
        if not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Count.step(self, reply)


class Duel(Environment):
    """Two agents take turns for row.answer turns each; the first agent with a longer total text wins."""

    def reset(self, row: Row, seed: int) -> None:
        self.left = 2 * int(row.answer)
        self.said = {"": 0, "black": 0}
        self.turn = ""

    def step(self, reply: Reply) -> Step:
        self.said[self.turn] += len(reply.text)
        self.left -= 1
        if self.left == 0:
            wins = 1.0 if self.said[""] > self.said["black"] else -1.0
            return Step(done=True, rewards={"": wins, "black": -wins})
        self.turn = "black" if self.turn == "" else ""
        return Step(f"it said {reply.text}.", agent=self.turn)


class Forgetful(Count):
    """Remove earlier turns after every second reply."""

    def step(self, reply: Reply) -> Step:
        step = super().step(reply)
        begins = len(self.replies) % 2 == 0
        return Step(f"so far {len(self.replies)}: " if begins else "go on: ", step.reward, step.done, begins=begins)


class Stranger(Count):
    """Reward an agent without turns."""

    def step(self, reply: Reply) -> Step:
        return Step("x", rewards={"nobody": 1.0})
