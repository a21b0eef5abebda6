"""The first process of the batch step: it does nothing but keep a controller, so that it is hard to kill.

When the batch step's process is gone, Slurm kills the srun below it, and what srun leaves behind (its shepherd)
sends SIGKILL to the node agents, which then cannot clean their nodes. So the controller is a child. If the kernel
or an operator kills it, its srun tells the agents to save and leave, this process waits for that, and starts a
new controller, which finds everything it needs in the run directory.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from slurm_rl.job.controller import STOP_SIGNALS
from slurm_rl.node.processes import all_pids, become_subreaper, die_with_parent, parent_of

EXIT_KILLED = 137
_MAX_RESTARTS = 3
_POLL_S = 0.05


class Supervisor:
    """Runs `work` in a child process, anew when it was killed."""

    def __init__(self, work: Callable[[], int], *, patience_s: float, on_death: Callable[[str], None]) -> None:
        """
        Args:
            work: what the child does, its exit status the result. It unblocks STOP_SIGNALS once it handles them.
            patience_s: how long orphans of a killed child may take to end by themselves.
            on_death: told how the child was killed.
        """
        self.work, self.patience_s, self.on_death = work, patience_s, on_death
        self.child = 0
        self.asked: int | None = None

    def main(self) -> int:
        """The exit status of the first child that ended by itself; EXIT_KILLED when none did."""
        become_subreaper()
        # From here on every signal is either forwarded or waits for the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._on_signal)
        for _ in range(1 + _MAX_RESTARTS):
            status = self._run_once()
            if status >= 0:
                return status
            self._end_orphans()
            self.on_death(signal.Signals(-status).name)
        return EXIT_KILLED

    def _run_once(self) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            die_with_parent(signal.SIGKILL, parent)
            os._exit(self._work())
        if self.asked is not None:
            os.kill(self.child, self.asked)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        _, status = os.waitpid(self.child, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        return os.waitstatus_to_exitcode(status)

    def _work(self) -> int:
        try:
            return self.work()
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def _end_orphans(self) -> None:
        """Until every process that the child left is gone: they were told to leave when it died."""
        if self._are_gone(self.patience_s):
            return
        for pid in filter(lambda pid: parent_of(pid) == os.getpid(), all_pids()):
            os.kill(pid, signal.SIGTERM)  # an srun kills its tasks at that
        self._are_gone(self.patience_s)

    def _are_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                time.sleep(_POLL_S)
        return False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.asked = signum
        os.kill(self.child, signum)
