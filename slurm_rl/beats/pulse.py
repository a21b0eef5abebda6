"""A process tells in a small file on its node what it does; the node's agent looks at it. Standard library alone.

    start_pulse("policy-0")          once; does nothing where no agent looks (no SLURM_RL_BEATS in the environment)
    with phase("train"):             whoever is in no phase waits for others, and is never late
        tick()                       a micro-batch, a token: the process gets on

A beat costs microseconds and touches no shared disk: one write of a kilobyte below the node's temp folder.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import inspect
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

BEATS = "SLURM_RL_BEATS"
"""The environment variable: the folder of this node's beats."""
DUMP_SIGNAL = signal.SIGUSR1
"""At which a process writes the stacks of its threads."""
NUM_SPEEDS = 5
"""Steps whose speed a beat tells."""
_SIZE = 1024
_WRITE_S = 0.05
"""A tick sooner after the last one that was written is only counted."""
T = TypeVar("T", bound=type)


class Pulse:
    """The beats of one process. Any thread may beat.

    Args:
        folder: of this node.
        name: of the process: `policy-0`, `rollout-1`, `rank-3`, `driver`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self._pid = name, os.getpid()
        self._fd = os.open(folder / f"{name}.json", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._phases: list[str] = []
        self._calls: dict[str, int] = {}
        self._longest: dict[str, float] = {}
        self._num_beats = 0
        self.last_phase = ""
        """The one that was left last: of an error on its way out, the outermost that it came through."""
        self._speeds: deque[float] = deque(maxlen=NUM_SPEEDS)
        self._num_speeds = 0
        self._since = self._last = time.monotonic()
        self._written = 0.0
        # Stays open: faulthandler keeps the number of the file alone.
        self._stack = (folder / f"{name}.stack").open("w", encoding="utf-8")
        faulthandler.register(DUMP_SIGNAL, file=self._stack, all_threads=True, chain=False)
        self._write(self._last)

    def enter(self, phase: str) -> None:
        with self._lock:
            self._beat()
            self._phases.append(phase)
            self._since = self._last
            self._write(self._last)

    def leave(self, phase: str) -> None:
        self.last_phase = phase
        with self._lock:
            self._beat()
            # Of several threads in one phase it does not matter which one left.
            self._phases.reverse()
            self._phases.remove(phase)
            self._phases.reverse()
            self._calls[phase] = self._calls.get(phase, 0) + 1
            self._write(self._last)

    def tick(self) -> None:
        with self._lock:
            self._beat()
            if self._last - self._written > _WRITE_S:
                self._write(self._last)

    def note_speed(self, seconds: float, amount: int) -> None:
        """What own work took in a step, without waiting for other ranks: `seconds` for so many tokens, or the like."""
        with self._lock:
            if amount > 0 and seconds > 0:
                self._speeds.append(seconds / amount)
                self._num_speeds += 1

    def is_here(self) -> bool:
        """False in a process that was forked from the one that beats."""
        return os.getpid() == self._pid

    def _beat(self) -> None:
        now = time.monotonic()
        if self._phases:
            phase = self._phases[-1]
            self._longest[phase] = max(self._longest.get(phase, 0.0), now - self._last)
        self._num_beats += 1
        self._last = now

    def _write(self, now: float) -> None:
        if not self.is_here():  # the file is the parent's
            return
        phase = self._phases[-1] if self._phases else ""
        row = {
            "name": self.name,
            "pid": self._pid,
            "phase": phase,
            "since": round(self._since, 3),
            "last": round(self._last, 3),
            "beats": self._num_beats,
            "calls": self._calls.get(phase, 0),
            "longest": round(self._longest.get(phase, 0.0), 3),
            "speeds": [float(f"{speed:.4g}") for speed in self._speeds],
            "num_speeds": self._num_speeds,
        }
        # A full disk must not end a step.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, json.dumps(row).encode().ljust(_SIZE - 1) + b"\n", 0)
        self._written = now


_own: Pulse | None = None


def start_pulse(name: str) -> Pulse | None:
    """From here on this process beats; None where nobody looks."""
    global _own
    folder = os.environ.get(BEATS)
    if not folder:
        return None
    # NCCL's monitor opens <this><rank>.pipe, and writes its flight recorder when something is written into it.
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(Path(folder) / f"{name}."))
    try:
        _own = Pulse(Path(folder), name)
    except OSError:
        _own = None
    return _own


def listen(name: str) -> Pulse | None:
    """Of a process that a beating one has started: it writes its stacks when asked to, and is never late."""
    folder = os.environ.get(BEATS)
    if not folder or (_own is not None and _own.is_here()):
        return None
    try:
        return Pulse(Path(folder), name)
    except OSError:
        return None


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """This process works at `name`."""
    pulse = _own
    if pulse is None:
        yield
        return
    pulse.enter(name)
    try:
        yield
    finally:
        pulse.leave(name)


def tick() -> None:
    """This process gets on."""
    if _own is not None:
        _own.tick()


def own_name() -> str:
    """Of this process; "" where it does not beat."""
    return "" if _own is None else _own.name


def last_phase() -> str:
    """Which phase this process left last, as an error does on its way out."""
    return "" if _own is None else _own.last_phase


def note_speed(seconds: float, amount: int) -> None:
    """See `Pulse.note_speed`."""
    if _own is not None:
        _own.note_speed(seconds, amount)


def beating(cls: T, name: str) -> T:
    """A subclass whose process beats as `name`: each public method is a phase of its name.

    >>> class Adder:
    ...     def add(self, a, b):
    ...         return a + b
    >>> beating(Adder, "adder-0")().add(1, 2)
    3
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        start_pulse(name)
        cls.__init__(self, *args, **kwargs)  # type: ignore[misc]

    methods = {key: getattr(cls, key) for key in dir(cls) if not key.startswith("_") and callable(getattr(cls, key))}
    wrapped = {key: _as_phase(method, key) for key, method in methods.items()}
    made: T = type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__, **wrapped})  # type: ignore[assignment]
    return made


def _as_phase(method: Any, name: str) -> Any:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with phase(name):
                return await method(*args, **kwargs)

        return call_async

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with phase(name):
            return method(*args, **kwargs)

    return call
