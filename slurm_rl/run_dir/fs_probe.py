"""Probes for file systems that hang. Standard library only.

A call on a file system that hangs (its server is down, its FUSE process stopped) blocks in the kernel, where only
SIGKILL ends it, and sometimes not even that. Processes that must continue therefore probe from a child process:

    no stop requested   Readers and writers wait, as the file system may recover.
    stop requested      A process that never touches the run directory (launch/controller/supervisor.py) probes it
                        repeatedly. While the probe returns, the run saves, however long that takes. After LOST_S
                        without a result, all processes of the job are killed and the job exits with 130. Earlier
                        checkpoints stay, and `resume` continues from there. A time limit lets the run use the time
                        until the limit in any case.
    a command           `cancel`, and the command in front of a local run, report a hang on stderr after ANSWER_S.
                        `cancel` then signals the job through the launcher: the local process, the Slurm job with
                        the script of the run, or the given job id.

The probe sets the mtime of the folder, a request that no cache can answer. It does not detect a file system of which
only the data servers hang; use kill -9 on a local run there.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ANSWER_S = 5.0
"""Timeout of commands."""
LOST_S = 10.0
"""Timeout in a job that must stop."""
_POLL_S = 0.02


class ForkedTask:
    """A function in a forked child process, which may block on a file system without this process."""

    def __init__(self, work: Callable[[], int | None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._work(work)

    def _work(self, work: Callable[[], int | None]) -> None:
        status = 1
        try:
            # A terminal signals both processes; the parent decides.
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN)
            status = work() or 0
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def poll(self) -> int | None:
        """Return the exit status, None while the child runs, -9 if it was killed."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another part of this process has reaped it
                self.status = 1
            else:
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def leave(self) -> None:
        """Kill the child without waiting: it may still block in the kernel."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
            self.poll()


class SubprocessProbe:
    """Probe a file system repeatedly without blocking."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self.path, self.timeout_s = path, timeout_s
        self._probe: ForkedTask | None = None
        self._started_at = 0.0

    def hangs(self) -> bool:
        """Return True if the current probe has run for longer than `timeout_s`."""
        now = time.monotonic()
        if self._probe is not None and self._probe.poll() is not None:
            self._probe = None
        if self._probe is None:
            if now >= self._started_at + self.timeout_s / 5:
                self._probe, self._started_at = ForkedTask(lambda: _touch(self.path)), now
            return False
        return now > self._started_at + self.timeout_s

    def close(self) -> None:
        if self._probe is not None:
            self._probe.leave()


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # an error is an answer
        os.utime(path)


def run_in_child(work: Callable[[], int], path: Path) -> int | None:
    """Run `work` in a child process; return its exit status, or None if the file system of `path` hangs."""
    probe, child = SubprocessProbe(path, ANSWER_S), ForkedTask(work)
    try:
        while (status := child.poll()) is None:
            if probe.hangs():
                return None
            time.sleep(_POLL_S)
        return status
    finally:
        child.leave()
        probe.close()
