"""Trainer's side of an environment process: open calls and their results."""

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from slurm_rl.envs.steps import Answer, Said
from slurm_rl.envs.worker import Begun, Call, write_call
from slurm_rl.node.processes import find_descendants
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import describe_error
from slurm_rl.run_dir.wire import Outbox, Wire

_GRACE_S = 1.0
"""Extra seconds: an awaiting step times out by itself and reports it."""
_END_S = 10.0
_LAST_READS = 1000
"""Largest number of bytes read from an ended process; its children may still write."""


@dataclass
class WorkerProcess:
    """An environment process and its open calls."""

    process: BaseProcess
    wire: Wire
    num_begun: Begun
    """Shared counter of started calls, in order."""
    num_asked: int = 0
    open: dict[str, tuple[int, Call]] = field(default_factory=dict)
    """Open calls by episode: (number of the call from 1, call)."""
    num_seen: int = 0
    parts: deque[list[Call]] = field(default_factory=deque)
    """Suspect calls, sent one at a time while no others are open."""
    suspected: set[str] = field(default_factory=set)
    """Episodes of those; one that kills a process again fails."""
    holds: set[str] = field(default_factory=set)
    """Episodes with an instance in this process."""
    heard_at: float = 0.0
    is_gone: bool = False
    """It has ended, or sent an invalid answer."""
    nonsense: str = ""
    is_trying: bool = False
    outbox: Outbox = field(init=False)
    """Sends in a thread: a hanging process must not block the pool."""

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.wire)

    def ask(self, calls: Sequence[Call]) -> None:
        if not self.open:
            self.heard_at = time.monotonic()
        for call in calls:
            self.num_asked += 1
            self.open[call.episode] = self.num_asked, call
        self.outbox.put([write_call(call, is_held=call.episode in self.holds) for call in calls])

    def submit(self, calls: list[Call]) -> None:
        if self.parts or self.is_trying:
            self.parts.append(calls)
        else:
            self.ask(calls)

    def take(self, answer: Answer) -> None:
        del self.open[answer.episode]
        self.suspected.discard(answer.episode)
        if isinstance(answer.outcome, Failure) or answer.outcome.done:
            self.holds.discard(answer.episode)
        else:
            self.holds.add(answer.episode)

    def look(self) -> None:
        """Record a started step as a sign of life."""
        if self.num_begun.value != self.num_seen:
            self.num_seen, self.heard_at = self.num_begun.value, time.monotonic()

    def begun(self) -> list[Call]:
        return [call for number, call in self.open.values() if number <= self.num_begun.value]

    def go_on(self) -> None:
        if not self.open:
            self.is_trying = bool(self.parts)
            if self.parts:
                self.ask(self.parts.popleft())

    def read(self) -> list[Answer]:
        """Return available answers; invalid bytes end the process."""
        if self.is_gone:
            return []
        try:
            said: list[Said] = self.wire.receive()
            found = [answer for one in said for answer in one.read()]
            self._check(found)
        except (EOFError, OSError):
            self.is_gone = True
            return []
        except Exception as error:  # whatever decoding raises
            self.is_gone, self.nonsense = True, describe_error(error)
            return []
        self.heard_at = time.monotonic()
        for answer in found:
            self.take(answer)
        return found

    def read_last(self) -> list[Answer]:
        """Return the messages that a process sent before it ended."""
        found: list[Answer] = []
        for _ in range(_LAST_READS):
            if self.is_gone or not wait([self.wire.fileno()], 0):
                break
            found += self.read()
        self.is_gone = True
        return found

    def _check(self, found: Sequence[Answer]) -> None:
        """Raise ValueError if an answer is not of a call that is open."""
        names = [answer.episode for answer in found]
        if len({*names} & {*self.open}) < len(names):
            raise ValueError("an answer to a call that it did not have")

    def find_end(self, timeout_s: float) -> Failure | None:
        """Return the failure of a dead or silent process; None for a healthy one."""
        if self.nonsense:
            return Failure("crash", f"the process sent an invalid answer ({self.nonsense})")
        if self.is_gone:
            self.process.join(_END_S)
            return Failure("crash", f"the process died with exit code {self.process.exitcode}")
        if time.monotonic() - self.heard_at > timeout_s + _GRACE_S:
            return Failure("hang", f"no step within {timeout_s:g} s")
        return None

    def end(self) -> None:
        """Kill the process and all its descendants, those in sessions of their own included."""
        self.outbox.close()
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            if pid is not None and self.process.is_alive():
                os.kill(pid, signal.SIGSTOP)  # it starts nothing more
        below = find_descendants(pid) if pid is not None else []
        self.process.kill()
        for child in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        self.process.join(_END_S)
        self.wire.close()
