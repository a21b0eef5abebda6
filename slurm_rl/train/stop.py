"""The clock and the stop flag of a loop: a signal raises it, the loop looks at it where stopping loses nothing."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from slurm_rl.errors import StopRequested


@dataclass
class Timer:
    """`time/<phase>_s` for each phase; a phase entered twice adds up."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        key = f"time/{name}_s"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - start


class StopFlag:
    """Set by SIGUSR2, SIGTERM or SIGINT, however often they come."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def install(self) -> None:
        for signum in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)

    def is_set(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Raise StopRequested once a signal came."""
        if self.signal is not None:
            raise StopRequested("the run was asked to save and leave", seen=signal.Signals(self.signal).name)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.signal = signum
