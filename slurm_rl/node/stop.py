"""Clock and stop flag of a loop: a signal sets the flag, and the loop checks it where stopping loses nothing.

A trainer always ends with outcome.json and the matching exit code: `finished` 0, `checkpointed` 75 (stopped with all
state saved: try again later), `failed` 1, or 2 for bad input.
"""

import contextlib
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from slurm_rl.errors import OutOfMemory, SlurmRLError, StopRequested, first_line
from slurm_rl.node import heartbeat
from slurm_rl.node.driver import EXIT_CHECKPOINTED
from slurm_rl.run_dir.io_errors import explain_io_error, log_to_stderr
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, write_last


@dataclass
class Timer:
    """`time/<phase>_s` for each phase; a phase entered twice adds up."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        with heartbeat.phase(name):
            yield
        key = f"time/{name}_s"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - start


class StopFlag:
    """Set by SIGUSR2, SIGTERM or SIGINT, however often they come."""

    def __init__(self, *, at_once: bool = False) -> None:
        """
        Args:
            at_once: the first signal also raises StopRequested wherever the main thread is. To be set to False once the
                process has something to save.
        """
        self.at_once = at_once
        self.signal: int | None = None
        self._since = 0.0

    def install(self) -> None:
        for signum in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)

    def is_set(self) -> bool:
        return self.signal is not None

    def age_s(self) -> float | None:
        """Seconds since the first signal; None before it."""
        return None if self.signal is None else time.monotonic() - self._since

    def check(self) -> None:
        """Raise StopRequested once a signal came."""
        if self.signal is not None:
            raise StopRequested("the run received a request to save and stop", seen=signal.Signals(self.signal).name)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        is_first = self.signal is None
        if is_first:
            self._since = time.monotonic()
        self.signal = signum
        if is_first and self.at_once:
            self.check()


def run_to_outcome(
    run: RunDir, attempt: AttemptDir, train: Callable[[RunDir, AttemptDir], None], *, writes: bool = True
) -> int:
    """Run `train` and return the exit status; the process that `writes` also writes outcome.json and events."""

    from slurm_rl.node.oom import RanOut, is_out_of_memory, note_out_of_memory

    def end(outcome: str, status: int, **fields: Any) -> int:
        if writes:
            write_last(run, attempt.outcome, {"outcome": outcome, "exit_code": status, **fields})
        return status

    try:
        train(run, attempt)
    except StopRequested as stop:
        return end("checkpointed", EXIT_CHECKPOINTED, cause=str(stop))
    except SlurmRLError as error:
        if isinstance(error, OutOfMemory):
            note_out_of_memory(
                attempt, RanOut(error.where or "trainer", error.rule.partition(" must ")[0], str(error.seen))
            )
        log_to_stderr(f"{type(error).__name__}: {error}")
        if writes:
            append_event(run, "trainer/failed", cause=str(error))
        return end("failed", error.exit_code, cause=str(error), error=type(error).__name__)
    except Exception as error:
        if is_out_of_memory(error):
            # Every rank reports its own, since the first one may only see that another has died.
            note_out_of_memory(
                attempt, RanOut(heartbeat.process_name() or "trainer", heartbeat.last_phase(), first_line(error))
            )
        if cause := explain_io_error(error, run.path):
            log_to_stderr(cause)
            return end("failed", 1, cause=f"{cause}, then resume", error=type(error).__name__)
        # An unforeseen error: the log has the traceback, the cause names it.
        traceback.print_exc()
        if writes:
            append_event(run, "trainer/crashed", cause=repr(error))
        return end("failed", 1, cause=repr(error), error=type(error).__name__)
    return end("finished", 0)
