"""Environments in processes of their own: calls in, what came of each out, in bounded time.

    with EnvironmentPool(config.env) as pool:
        answers = pool.ask([Call(...), ...])       # in order, when all have been answered; or
        pool.submit([Call(...), ...])              # at any time, from any thread
        answers = pool.listen(1.0)                 # those that have come, in one thread
        pool.forget(["12.0.1", ...])               # these episodes are over

An episode stays in one process. A process tells when a step begins and when it ends, so that of one that died or says
nothing for `env.timeout_s` it is known which steps were under way: one alone is to blame and has failed; of several
each is tried again by itself. All others go to a new process, where an environment is brought back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs import worker
from slurm_rl.envs.worker import Answer, Call, Facts, NextCall, Outcome
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.rewards.results import Failure

_GRACE_S = 1.0
"""A step that awaits ends itself at its deadline, and then says so."""
_END_S = 10.0
_LOOK_S = _GRACE_S / 2


@dataclass
class _Process:
    """A process, and what it was asked for."""

    process: BaseProcess
    connection: Connection
    open: dict[str, Call] = field(default_factory=dict)
    """By episode, until answered."""
    begun: set[str] = field(default_factory=set)
    parts: deque[list[Call]] = field(default_factory=deque)
    """What may be asked for when nothing is open: those that may be to blame come alone."""
    holds: set[str] = field(default_factory=set)
    """Episodes whose worlds are there."""
    heard_at: float = 0.0
    is_trying: bool = False
    outbox: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._write, name="environment-calls", daemon=True).start()

    def _write(self) -> None:
        """In a thread: who does not read, since its step hangs, must hold up nobody."""
        with contextlib.suppress(OSError, ValueError):
            while (asked := self.outbox.get()) is not None:
                self.connection.send(asked)

    def ask(self, calls: Sequence[Call]) -> None:
        if not self.open:
            self.heard_at = time.monotonic()
        self.open |= {call.episode: call for call in calls}
        self.outbox.put([NextCall(it.episode, it.replies[-1]) if it.episode in self.holds else it for it in calls])

    def submit(self, calls: list[Call]) -> None:
        if self.parts or self.is_trying:
            self.parts.append(calls)
        else:
            self.ask(calls)

    def take(self, answer: Answer) -> bool:
        """Whether it ends a call."""
        self.heard_at = time.monotonic()
        if answer.outcome is None:
            self.begun.add(answer.episode)
            return False
        self.begun.discard(answer.episode)
        del self.open[answer.episode]
        if isinstance(answer.outcome, Failure) or answer.outcome.done:
            self.holds.discard(answer.episode)
        else:
            self.holds.add(answer.episode)
        return True

    def go_on(self) -> None:
        if not self.open:
            self.is_trying = bool(self.parts)
            if self.parts:
                self.ask(self.parts.popleft())

    def end(self) -> None:
        self.outbox.put(None)
        self.process.kill()
        self.process.join(_END_S)
        self.connection.close()


class EnvironmentPool:
    """`env.num_workers` processes that hold environments; a context manager."""

    facts: Facts
    """What the class says of itself; known once the processes are up."""

    def __init__(self, config: EnvironmentConfig, schemas: Sequence[dict[str, Any]] = ()) -> None:
        self.config, self.schemas, self.spec = config, schemas, config.name or config.tools
        self._processes: list[_Process] = []
        self._submitted: deque[list[Call]] = deque()
        self._forgotten: deque[str] = deque()
        self._wakes, self._woken = multiprocessing.Pipe()
        self._looked_at = 0.0
        self._one_batch = threading.Lock()
        self._lock = threading.Lock()
        self.is_closed = False
        # Not forked off this one: the trainer has threads and perhaps a GPU context, and neither survives a fork.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["slurm_rl.envs.worker"])

    def __enter__(self) -> EnvironmentPool:
        """Start the processes.

        Raises:
            ConfigError: the user's file cannot be run; RewardError: they are not up within `env.start_timeout_s`.
        """
        try:
            for _ in range(self.config.num_workers):
                self._processes.append(self._start())
            for process in self._processes:
                self._greet(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        self._wakes.send_bytes(b"")
        with self._lock:
            for process in self._processes:
                process.end()
            self._processes = []

    def forget(self, episodes: Sequence[str]) -> None:
        """No call of these will come again."""
        self._forgotten.extend(episodes)

    def submit(self, calls: Sequence[Call]) -> None:
        """Ask; at most one call of an episode at a time. Returns at once."""
        if calls:
            self._submitted.append(list(calls))
            self._wakes.send_bytes(b"")

    def play(self, calls: Sequence[Call]) -> list[Outcome]:
        """What came of each call, in order."""
        return [answer.outcome for answer in self.ask(calls) if answer.outcome is not None]

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """The answer to each call, in order. An environment that misbehaves costs its own call alone."""
        answers: dict[str, Answer] = {}
        with self._one_batch:
            self.submit(calls)
            while len(answers) < len(calls):
                answers |= {answer.episode: answer for answer in self.listen(_LOOK_S)}
        return [answers[call.episode] for call in calls]

    def listen(self, timeout_s: float) -> list[Answer]:
        """Answers that have come; waits up to `timeout_s` for the first, less where other calls were submitted."""
        with self._lock:
            return [] if self.is_closed else self._listen(timeout_s)

    def _listen(self, timeout_s: float) -> list[Answer]:
        self._share_out()
        by_connection = {process.connection: process for process in self._processes}
        found: list[Answer] = []
        for connection in wait([*by_connection, self._woken], timeout=min(timeout_s, _LOOK_S)):
            if connection is self._woken:
                while self._woken.poll():
                    self._woken.recv_bytes()
            else:
                found += self._read(by_connection[connection])  # type: ignore[index]
        self._share_out()
        if (now := time.monotonic()) > self._looked_at + _LOOK_S / 2:
            self._looked_at = now
            for index, process in enumerate(self._processes):
                is_gone = process.heard_at == float("-inf")
                if (process.open or is_gone) and (cause := self._find_end(process)):
                    found += self._blame(index, cause)
        for process in self._processes:
            process.go_on()
        return found

    def _share_out(self) -> None:
        shares: list[list[Call]] = [[] for _ in self._processes]
        while self._submitted:
            # By name, not by turn: an episode finds its world where it left it.
            for call in self._submitted.popleft():
                shares[self._place(call.episode)].append(call)
        gone: list[list[str]] = [[] for _ in self._processes]
        while self._forgotten:
            episode = self._forgotten.popleft()
            gone[self._place(episode)].append(episode)
        for process, share, names in zip(self._processes, shares, gone, strict=True):
            if names := [name for name in names if name in process.holds]:
                process.holds.difference_update(names)
                process.outbox.put(names)
            if share:
                process.submit(share)

    def _place(self, episode: str) -> int:
        return zlib.crc32(episode.encode()) % len(self._processes)

    def _read(self, process: _Process) -> list[Answer]:
        found = []
        try:
            while process.connection.poll():
                answer = process.connection.recv()
                if process.take(answer):
                    found.append(answer)
        except (EOFError, OSError):
            process.heard_at = float("-inf")
            self._looked_at = 0.0
        return found

    def _find_end(self, process: _Process) -> Failure | None:
        """What became of a process that answers no more; None of one that is alive and well."""
        if process.heard_at == float("-inf"):
            process.process.join(_END_S)
            return Failure("crash", f"the process died with exit code {process.process.exitcode}")
        if time.monotonic() - process.heard_at > self.config.timeout_s + _GRACE_S:
            return Failure("hang", f"no step within {self.config.timeout_s:g} s")
        return None

    def _blame(self, index: int, cause: Failure) -> list[Answer]:
        """Replace a process; the new one is asked for what was left, and answered is who is to blame."""
        old = self._processes[index]
        left, suspects = list(old.open.values()), [call for call in old.open.values() if call.episode in old.begun]
        old.end()
        self._processes[index] = fresh = self._start()
        self._greet(fresh)
        if self.facts.resume == "restart":
            guilty, suspects, left = left, [], []
        elif len(suspects) <= 1:
            guilty, suspects = suspects or left[:1], []
        else:
            guilty = []
        apart = {call.episode for call in [*suspects, *guilty]}
        others = [call for call in left if call.episode not in apart]
        fresh.parts.extend([*([others] if others else []), *([call] for call in suspects), *old.parts])
        return [Answer(call.episode, cause) for call in guilty]

    def _start(self) -> _Process:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=worker.serve, args=(theirs, self.config, self.schemas), daemon=True, name="environments"
        )
        process.start()
        theirs.close()
        return _Process(process, ours)

    def _greet(self, process: _Process) -> None:
        """Wait until it has imported the user's file."""
        limit_s = self.config.start_timeout_s
        try:
            answer: Any = process.connection.recv() if process.connection.poll(limit_s) else "late"
        except (EOFError, OSError):
            answer = f"it died with exit code {process.process.exitcode}"
        if answer == "late":
            raise RewardError(
                f"a process for environments must be up within {limit_s:g} s (env.start_timeout_s)",
                seen=f"nothing of {self.spec}",
                action="see what the file does as it is imported, or raise the deadline",
            )
        if isinstance(answer, str):
            key = "env.tools" if self.config.name is None else "env.name"
            raise ConfigError(f"{key} must be a file that runs", seen=f"{self.spec}: {answer}", action="mend it")
        self.facts = answer
