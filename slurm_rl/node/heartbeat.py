"""Heartbeats of a process: a small file on its node, which the node's agent reads. Standard library only.

    start_heartbeat("policy-0")   once; does nothing without SLURM_RL_HEARTBEATS in the environment
    with phase("train"):          a process outside of all phases waits for others and is never late
        beat()                    progress: a micro-batch, a token

A heartbeat costs microseconds: one write of a kilobyte on the node's own disk.
"""

import contextlib
import faulthandler
import functools
import inspect
import json
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

HEARTBEATS = "SLURM_RL_HEARTBEATS"
"""Environment variable: the folder of this node's heartbeats."""
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a process write the stacks of its threads to `<name>.stack`."""
NUM_SPEEDS = 5
"""Number of steps for which the speed is kept."""
_SIZE = 1024
_MIN_INTERVAL_S = 0.05
T = TypeVar("T", bound=type)


class Heartbeat:
    """Heartbeat of one process; thread-safe.

    Args:
        folder: the node's folder of heartbeats.
        name: `policy-0`, `rollout-1`, `rank-3` or `driver`.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.pid, self._lock = name, os.getpid(), threading.Lock()
        self.last_phase = ""
        """Phase left last: for an error, the outermost phase that it passed."""
        self._phases: list[str] = []
        self._calls: Counter[str] = Counter()
        self._longest: dict[str, float] = {}
        self._speeds: deque[float] = deque(maxlen=NUM_SPEEDS)
        self._last, self._written = time.monotonic(), 0.0
        # Both stay open; faulthandler keeps only the descriptor.
        self._file = (folder / f"{name}.json").open("wb", buffering=0)
        self._stack = (folder / f"{name}.stack").open("w", encoding="utf-8")
        faulthandler.register(DUMP_SIGNAL, file=self._stack, all_threads=True, chain=False)
        self._write()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the work of the block."""
        with self._lock:
            self._progress()
            self._phases.append(name)
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._progress()
                # The last one: several threads may be in the same phase.
                del self._phases[len(self._phases) - 1 - self._phases[::-1].index(name)]
                self._calls[name] += 1
                self.last_phase = name
                self._write()

    def beat(self) -> None:
        """Report progress in the innermost phase."""
        with self._lock:
            self._progress()
            if self._last - self._written > _MIN_INTERVAL_S:
                self._write()

    def note_speed(self, seconds: float, amount: int) -> None:
        """Record the time of a step for `amount` tokens; the next write has it."""
        if amount > 0 and seconds > 0:
            with self._lock:
                self._speeds.append(float(f"{seconds / amount:.4g}"))

    def _progress(self) -> None:
        now = time.monotonic()
        if self._phases:
            phase = self._phases[-1]
            self._longest[phase] = max(self._longest.get(phase, 0.0), now - self._last)
        self._last = now

    def _write(self) -> None:
        if os.getpid() != self.pid:  # a forked child
            return
        phase = self._phases[-1] if self._phases else ""
        row = {
            "name": self.name,
            "pid": self.pid,
            "phase": phase,
            "last": round(self._last, 3),
            "num_calls": self._calls[phase],
            "longest_s": round(self._longest.get(phase, 0.0), 3),
            "speeds": [*self._speeds],
        }
        with contextlib.suppress(OSError):  # a full disk must not end a step
            os.pwrite(self._file.fileno(), json.dumps(row).encode().ljust(_SIZE - 1) + b"\n", 0)
        self._written = self._last


_own: Heartbeat | None = None


def start_heartbeat(name: str) -> None:
    """Start the heartbeat of this process."""
    global _own
    if folder := os.environ.get(HEARTBEATS):
        # NCCL's monitor opens <this><rank>.pipe and dumps its flight recorder when the pipe is written.
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(Path(folder) / f"{name}."))
        _own = _open(folder, name)


def enable_stack_dump(name: str) -> Heartbeat | None:
    """Let a child of a process with a heartbeat dump its stacks on request; it is never late."""
    folder = os.environ.get(HEARTBEATS)
    return None if not folder or (_own is not None and _own.pid == os.getpid()) else _open(folder, name)


def _open(folder: str, name: str) -> Heartbeat | None:
    with contextlib.suppress(OSError):
        return Heartbeat(Path(folder), name)
    return None


def phase(name: str) -> contextlib.AbstractContextManager[None]:
    """Mark the work of the block."""
    return contextlib.nullcontext() if _own is None else _own.phase(name)


def beat() -> None:
    """Report progress."""
    if _own is not None:
        _own.beat()


def process_name() -> str:
    """Return the name of this process's heartbeat; "" without one."""
    return "" if _own is None else _own.name


def last_phase() -> str:
    """Return the phase that this process left last."""
    return "" if _own is None else _own.last_phase


def note_speed(seconds: float, amount: int) -> None:
    """Record the time of the process's own work in a step, without waits for other ranks, for `amount` tokens."""
    if _own is not None:
        _own.note_speed(seconds, amount)


def with_heartbeat(cls: T, name: str) -> T:
    """Return a subclass that starts a heartbeat in its process, with a phase for each public method.

    >>> class Adder:
    ...     def add(self, a, b):
    ...         return a + b
    >>> with_heartbeat(Adder, "adder-0")().add(1, 2)
    3
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        start_heartbeat(name)
        cls.__init__(self, *args, **kwargs)  # type: ignore[misc]

    methods = {key: getattr(cls, key) for key in dir(cls) if not key.startswith("_") and callable(getattr(cls, key))}
    wrapped = {key: _as_phase(method, key) for key, method in methods.items()}
    made: T = type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__, **wrapped})  # type: ignore[assignment]
    return made


def _as_phase(method: Any, name: str) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with phase(name):
            return method(*args, **kwargs)

    @functools.wraps(method)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with phase(name):
            return await method(*args, **kwargs)

    return call_async if inspect.iscoroutinefunction(method) else call
