"""Run a job from its start to its exit code: a controller, supervised by the first process of the batch step.

When the process of the batch step ends, Slurm kills the srun below it, and srun's shepherd sends SIGKILL to the node
agents, which then cannot clean their nodes. Therefore the controller is a child process. If the kernel or an operator
kills it, its srun requests the agents to save and leave; the supervisor waits for them and starts a new controller,
which reads its state from the run directory.

The supervisor touches no file, so a file system that hangs does not block it. After a stop request it probes the run
directory (rule: fs_probe.py); if the probe times out, it ends all its descendants and itself.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from slurm_rl.launch.controller.allocation import Allocation
from slurm_rl.launch.controller.attempts import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_OURS
from slurm_rl.launch.controller.controller import STOP_SIGNALS, Controller
from slurm_rl.launch.controller.ends import newest_step
from slurm_rl.launch.controller.results import tell_end, write_results
from slurm_rl.node.driver import name_signal
from slurm_rl.node.limits import raise_limits
from slurm_rl.node.private_folder import remove_tmp_dirs
from slurm_rl.node.processes import all_pids, become_subreaper, die_with_parent, end_descendants, parent_of
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.fs_probe import LOST_S, ForkedTask, SubprocessProbe
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.run_dir import RunDir, append_event, write_last
from slurm_rl.run_dir.run_lock import LockHolder, read_lock
from slurm_rl.run_dir.save_times import lead_in_force

EXIT_KILLED = 137
_MAX_RESTARTS = 3
_STEADY_S = 60.0
_POLL_S = 0.05
_END_S = 5.0
_TRY_S = 3.0
_PATIENT = (None, signal.SIGUSR2)

_CLEANING_S = 20.0


def drive(run: RunDir, plan: JobPlan, allocation: Allocation) -> int:
    """Drive the run to its end on these machines; return the exit code of the job."""
    raise_limits()  # the soft limits are those of the login shell, too low for a long run

    def note(how: str) -> None:
        run.epoch = own_epoch(run, allocation.holder())
        append_event(run, "controller/killed", by=how)

    status = Supervisor(
        Controller(run, plan, allocation).main,
        run.path,
        # The trainer may take as long for its checkpoint as before a time limit.
        patience_s=lead_in_force(run, plan.limits.checkpoint_lead_s, learns=plan.limits.learns_lead) + _CLEANING_S,
        on_death=note,
        on_hang=allocation.abandon,
        # Other nodes are cleaned by the run's next attempt on them.
        clean_up=lambda: remove_tmp_dirs(plan),
    ).main()
    if status == EXIT_KILLED:
        cause = "its controller was killed again and again; see dmesg for the kernel's reason"
        end = {"state": "failed", "exit_code": EXIT_FAILED, "cause": cause, "step": newest_step(run)}
        write_last(run, run.end, end)
        status = EXIT_FAILED
    if status != EXIT_NOT_OURS:
        write_results(run)
        tell_end(run)
    return status


def own_epoch(run: RunDir, own: LockHolder) -> int:
    """Return the epoch of this job's newest controller; 0 if another job holds the lock."""
    state = read_lock(run.lease)
    start = None if state.holder is None else (state.holder.launcher, state.holder.job, state.holder.restart)
    return state.epoch if start == (own.launcher, own.job, own.restart) else 0


class Supervisor:
    """Run `work` in a child process; restart the child if it was killed."""

    def __init__(
        self,
        work: Callable[[], int],
        folder: Path,
        *,
        patience_s: float,
        on_death: Callable[[str], None],
        on_hang: Callable[[str], None],
        clean_up: Callable[[], None],
        steady_s: float = _STEADY_S,
    ) -> None:
        """
        Args:
            work: function of the child; returns its exit status. It unblocks STOP_SIGNALS once it handles them.
            folder: the run directory.
            patience_s: timeout for orphans of a killed child to end by themselves.
            on_death: called with the name of the signal that killed the child.
            on_hang: called with the cause in a child process, for _TRY_S; ends processes that are not descendants.
            clean_up: removes files of the descendants, after `on_hang`.
            steady_s: lifetime of a child that resets the count of killed children.
        """
        self.work, self.folder, self.patience_s = work, folder, patience_s
        self.on_death, self.on_hang, self.clean_up = on_death, on_hang, clean_up
        self.child = 0
        self.asked: int | None = None
        self.watch = SubprocessProbe(folder, LOST_S)
        self.steady_s = steady_s

    def main(self) -> int:
        """Return the exit status of the first child that was not killed, or EXIT_KILLED after _MAX_RESTARTS."""
        become_subreaper()
        # From here on every signal is either forwarded or waits for the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._on_signal)
        num_killed = 0
        while num_killed <= _MAX_RESTARTS:
            began = time.monotonic()
            status = self._run_once()
            if status >= 0:
                return status
            # A child that ran for a while was not killed for a fault of its own; a job of weeks meets a few such kills.
            num_killed = 1 if time.monotonic() - began > self.steady_s else num_killed + 1
            self._end_orphans()
            self.on_death(name_signal(-status))
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
        status = self._wait()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        self.watch.close()
        return os.waitstatus_to_exitcode(status)

    def _wait(self) -> int:
        """Wait for the child; exit the process if the folder hangs after a stop request."""
        while True:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                return status
            # A time limit gives a file system until the job's end to come back.
            if self.asked not in _PATIENT and self.watch.hangs():
                self._give_up()
            time.sleep(_POLL_S)

    def _give_up(self) -> None:
        silent_s = f"{self.watch.timeout_s:g} s"
        cause = f"a stop was requested, but {self.folder} has not responded for {silent_s}: ended without saving"
        _try_to(lambda: self.on_hang(cause))
        end_descendants(_END_S)
        _try_to(self.clean_up)
        _try_to(lambda: log_to_stderr(cause))  # stderr may hang, too
        os._exit(EXIT_INTERRUPTED)

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
        """Wait until all orphans of the child have ended: its death sent them a signal."""
        if comes_true(self._are_gone, self.patience_s):
            return
        for pid in filter(lambda pid: parent_of(pid) == os.getpid(), all_pids()):
            os.kill(pid, signal.SIGTERM)  # an srun kills its tasks at that
        comes_true(self._are_gone, self.patience_s)

    def _are_gone(self) -> bool:
        """Reap ended children; return True if none remains."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        # A time limit does not override a stop request of the user.
        self.asked = signum if self.asked in _PATIENT else self.asked
        os.kill(self.child, signum)


def _try_to(work: Callable[[], None]) -> None:
    """Run `work` in a child process for at most _TRY_S."""
    trying = ForkedTask(work)
    comes_true(lambda: trying.poll() is not None, _TRY_S)
    trying.leave()
