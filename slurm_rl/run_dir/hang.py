"""File systems that do not answer: who waits for them, and for how long. Standard library alone.

A call on one that hangs (a server that is away, a FUSE program that stopped) waits in the kernel, where no signal but
SIGKILL reaches it, and on some not even that. So whoever must go on asks by a child process. One rule for all:

    nobody asked to stop    Who reads or writes waits, for it may come back; then all goes on.
    asked by the user       A process that never touches the run directory (launch/controller/supervisor.py) asks it
                            again and again. As long as it answers, the run saves, however long that takes; when it has
                            not answered for LOST_S, all processes of the job are killed and the job exits with 130.
                            What was saved before stays, and `resume` goes on from there once it answers. A time limit
                            gives the run until its end in any case.
    a command               `cancel`, and the command that a local run stays in front of, say after ANSWER_S on stderr
                            that it does not answer. `cancel` then asks the job by what the launcher knows: the process
                            here, or the Slurm job that has the run's script, or the job id that it is given.

"Does it answer" is one question to its server that no cache knows: it sets the folder's time anew. A file system whose
servers of data alone hang is not told from a slow one by that: kill -9 of a local run is for those.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ANSWER_S = 5.0
"""For commands."""
LOST_S = 10.0
"""Within a job that was asked to end."""
_POLL_S = 0.02


class Beside:
    """Work in a child process, which may wait for a file system for ever without this one."""

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
            # A terminal sends them to both; who forked decides.
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
        """Its exit status once it has ended; -9 when it was killed."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # whoever reaps all children was first
                self.status = 1
            else:
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def leave(self) -> None:
        """Kill it, and do not wait: it ends when the kernel lets it."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
            self.poll()


class Watch:
    """Asks a file system again and again, and waits for no answer."""

    def __init__(self, path: Path, patience_s: float) -> None:
        self.path, self.patience_s = path, patience_s
        self._question: Beside | None = None
        self._asked_at = 0.0

    def hangs(self) -> bool:
        """Whether it has left a question unanswered for longer than one is willing to wait."""
        now = time.monotonic()
        if self._question is not None and self._question.poll() is not None:
            self._question = None
        if self._question is None:
            if now >= self._asked_at + self.patience_s / 5:
                self._question, self._asked_at = Beside(lambda: _ask(self.path)), now
            return False
        return now > self._asked_at + self.patience_s

    def close(self) -> None:
        if self._question is not None:
            self._question.leave()


def _ask(path: Path) -> None:
    with contextlib.suppress(OSError):  # a refusal is an answer
        os.utime(path)


def run_beside(work: Callable[[], int], path: Path) -> int | None:
    """Run `work` in a child process; its exit status, or None when the file system of `path` hangs meanwhile."""
    watch, child = Watch(path, ANSWER_S), Beside(work)
    try:
        while (status := child.poll()) is None:
            if watch.hangs():
                return None
            time.sleep(_POLL_S)
        return status
    finally:
        child.leave()
        watch.close()
