"""Persistent programs: one process plays many episodes, so that imports happen once.

    in   {"episode": "7.0.0", "api_key": "...", "base_url": "...", "prompt": "3+4=", ...}   one line per episode
    out  {"episode": "7.0.0", "reward": 1.0}                                                one line at its end

A process has up to `rows` episodes at once (default 1; the answer may then omit the name). A dead or late process fails
its episodes and is replaced.
"""

import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from slurm_rl.data.lines import shorten
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.values import show
from slurm_rl.rollout.endpoint.programs import (
    Verdict,
    close_pipes,
    describe_end,
    end_session,
    read_verdict,
    start_program,
)

_LONGEST_LINE = 1_000_000
_KEPT_BYTES = 4_000
_POLL_S = 0.2
_EXIT_S = 5.0
_NOT_IN_TIME = "the program had not ended the episode after {:g} s"


class Resident:
    """One process and its episodes."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the process; may raise OSError."""
        self.process = start_program(argv, env)
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self.is_over = False
        self._told = Failure("crash", "the program was ended while it played")
        self._lock, self._writing, self._ending = threading.Lock(), threading.Lock(), threading.Lock()
        self._waiting: dict[str, Future[Verdict | Failure]] = {}
        self._errors = b""
        self._error_listener = threading.Thread(target=self._listen_to_errors, daemon=True)
        self._threads = [self._error_listener, threading.Thread(target=self._listen, daemon=True)]
        for thread in self._threads:
            thread.start()

    def play(self, name: str, row: Mapping[str, Any], timeout_s: float, stop: threading.Event) -> Verdict | Failure:
        """Play an episode to its end or the deadline.

        Args:
            row: written to standard input as a line of JSON; its `episode` is `name`.
        """
        deadline, done = time.monotonic() + timeout_s, Future[Verdict | Failure]()
        with self._lock:
            self._waiting[name] = done
            if self.is_over:
                self._answer(name, self._told)
        line = json.dumps(row).encode() + b"\n"
        self._write(line, lambda: done.done() or stop.is_set() or time.monotonic() > deadline)
        while not done.done() and not stop.is_set() and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                done.result(_POLL_S)
        with self._lock:
            self._waiting.pop(name, None)
        if not done.done():
            self.end()
            return Failure("hang", _NOT_IN_TIME.format(timeout_s))
        return done.result()

    def end(self) -> None:
        """Kill its session; its episodes in flight fail."""
        self.is_over = True
        with self._ending:
            if self.process.returncode is not None:
                return
            end_session(self.process)
            for thread in self._threads:
                thread.join(_EXIT_S)
            # A thread that still reads waits for a process that left the session, which `end_strays` kills.
            if not any(thread.is_alive() for thread in self._threads):
                close_pipes(self.process)

    def _write(self, line: bytes, is_over: Callable[[], bool]) -> None:
        """Write with a deadline, in case the program does not read."""
        assert self.process.stdin is not None
        pipe = self.process.stdin.fileno()
        with self._writing, contextlib.suppress(OSError, ValueError):
            while line and not is_over():
                if select.select([], [pipe], [], _POLL_S)[1]:
                    line = line[os.write(pipe, line) :]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self.process.stdout.readline(_LONGEST_LINE):
                self._take(line.decode("utf-8", "replace"))
        told = self._told
        with contextlib.suppress(ChildProcessError):  # already reaped by the killer
            found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            if found is not None and not self.is_over:
                status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                # The pipe stays open longer only if a child process outlives the program.
                self._error_listener.join(_EXIT_S)
                told = describe_end(status, self._errors)
        with self._lock:
            self.is_over, self._told = True, told
            for name in list(self._waiting):
                self._answer(name, told)

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self.process.stderr.fileno(), _KEPT_BYTES):
                self._errors = (self._errors + data)[-_KEPT_BYTES:]

    def _take(self, line: str) -> None:
        """Parse a line of output; an invalid one fails its own episode only."""
        try:
            tree = json.loads(line) if line.lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            return
        if not isinstance(tree, dict) or not {"reward", "error"} & set(tree):
            return
        with self._lock:
            alone = next(iter(self._waiting)) if len(self._waiting) == 1 else None
            name = tree.get("episode", alone)
            if not isinstance(name, str):
                outcome: Verdict | Failure = Failure("bad score", f"`episode` must be a name; got {show(name)}")
                name = alone
            elif tree.get("error") is not None:
                outcome = Failure("exception", shorten(_as_text(tree["error"]), 400))
            else:
                outcome = read_verdict(tree)
            if name in self._waiting:
                self._answer(name, outcome)

    def _answer(self, name: str, outcome: Verdict | Failure) -> None:
        future = self._waiting.pop(name)
        future.set_result(outcome)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else show(value, 400)


class Residents:
    """Pool of persistent processes; they live until `close`.

    Args:
        rows: concurrent episodes per process.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], rows: int) -> None:
        self.argv, self.env, self.rows = argv, env, rows
        self._lock = threading.Lock()
        self._load: dict[Resident, int] = {}

    def play(self, name: str, row: Mapping[str, Any], timeout_s: float, stop: threading.Event) -> Verdict | Failure:
        """Play an episode in one of the processes."""
        try:
            resident = self._take()
        except OSError as error:
            return Failure("exception", f"{self.argv[0]} cannot be started: {error.strerror}")
        try:
            return resident.play(name, row, timeout_s, stop)
        finally:
            self._give_back(resident)

    def close(self) -> None:
        with self._lock:
            residents, self._load = list(self._load), {}
        for resident in residents:
            resident.end()

    def _take(self) -> Resident:
        """Return the busiest process with room, so that few are needed."""
        with self._lock:
            free = [one for one, load in self._load.items() if load < self.rows and not one.is_over]
            chosen = max(free, key=lambda one: self._load[one]) if free else Resident(self.argv, self.env)
            self._load[chosen] = self._load.get(chosen, 0) + 1
            return chosen

    def _give_back(self, resident: Resident) -> None:
        with self._lock:
            load = self._load.get(resident, 1) - 1
            if resident.is_over:
                self._load.pop(resident, None)
            elif resident in self._load:
                self._load[resident] = load
        if resident.is_over:
            resident.end()
