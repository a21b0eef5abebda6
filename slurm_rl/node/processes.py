"""Find and end the processes of an attempt, and no others.

A process tree is not enough: Ray daemonises, vLLM starts sessions, and orphans become children of init. All descendants
keep the environment they were started with, so the agent puts a mark there and searches /proc/<pid>/environ for it. A
second job of the same user on the node has another mark; `ray stop` or pkill would end it too.

The agent calls `become_subreaper` once, starts everything with `mark_env` in the environment, and calls `end_marked` at
the end of the attempt.
"""

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.run_dir.process_stat import read_stat
from slurm_rl.run_dir.run_dir import RunDir

MARK = "SLURM_RL_ATTEMPT"
"""Environment variable with run, attempt and node rank."""

LIFE, LIFE_BEFORE = "SLURM_RL_ACTOR", "SLURM_RL_ACTOR_BEFORE"
"""Environment variables of a Ray actor: the name of this instance, and of the one that it replaces."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.03
_KILL_DEADLINE_S = 20.0
"""SIGKILL works at once, except on a process that hangs in the kernel (a dead NFS server, a GPU reset)."""
# Loaded at import: after a fork, dlopen may wait for a lock forever.
_libc = ctypes.CDLL(None, use_errno=True)


def mark_env(mark_value: str) -> dict[str, str]:
    """Return the variables that mark a process and its descendants.

    SPT_NOENV keeps setproctitle (in every Ray worker and vLLM engine) from overwriting /proc/<pid>/environ.
    """
    return {MARK: mark_value, "SPT_NOENV": "1"}


def attempt_mark(run: RunDir, job_key: str, attempt: int, rank: int) -> str:
    """Return the mark of the processes of one node's agent in one attempt."""
    return f"{job_key}:{attempt}:{rank}:{run.path}"


def become_subreaper() -> None:
    """Make orphans below this process its children instead of init's, so that it can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int, parent_pid: int) -> None:
    """Let this process get a signal when the parent's thread that forked it ends; to be called before exec."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent_pid:  # it ended before the line above
        os.kill(os.getpid(), signal_number)


def has_ended(process: subprocess.Popen[bytes] | None) -> bool:
    """Return whether the process was started and has ended."""
    return process is not None and process.poll() is not None


def start_child(argv: Sequence[str], env: Mapping[str, str], log: Path, death_signal: int) -> subprocess.Popen[bytes]:
    """Start a process in its own session, with output appended to `log` and a signal if this process dies."""
    with log.open("ab") as out:
        return subprocess.Popen(
            argv,
            env=dict(env),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, death_signal, os.getpid()),
        )


def write_into(log: Path) -> None:
    """Redirect the output of this process and its children: srun names its log files by other numbers."""
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def find_marked(mark_value: str) -> list[int]:
    """Return the living processes of this user with the mark, except this process and its ancestors."""
    spared = _self_and_ancestors()
    return sorted(pid for pid in all_pids() if pid not in spared and _has_variable(pid, MARK, mark_value))


def all_pids() -> list[int]:
    """Return every process that this one can see."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def end_marked(mark_value: str, grace_s: float, own_children: Collection[int] = ()) -> list[int]:
    """End every marked process: SIGTERM, after `grace_s` SIGKILL, until none is left.

    Args:
        own_children: pids that the caller waits for; the others are reaped here, and their Popen would
            report the exit code 0.

    Returns:
        The pids that needed SIGKILL.

    Raises:
        SlurmRLError: a process outlived SIGKILL.
    """
    terminated = _signal_until_ended(mark_value, signal.SIGTERM, grace_s)
    killed = _signal_until_ended(mark_value, signal.SIGKILL, _KILL_DEADLINE_S)
    for pid in (terminated | killed) - set(own_children):
        with contextlib.suppress(ChildProcessError):  # not our child
            os.waitpid(pid, os.WNOHANG)
    if left := find_marked(mark_value):
        raise SlurmRLError(
            f"every process of the attempt must end within {_KILL_DEADLINE_S:.0f} s of SIGKILL",
            seen=f"pids {left} still there",
            where=os.uname().nodename,
            action="they hang in the kernel, on a file system or a GPU: have the node drained and rebooted",
        )
    return sorted(killed)


def end_life_before() -> list[int]:
    """Kill the processes of the actor that this process replaces, and return the pids: they may hold a GPU."""
    life = os.environ.get(LIFE_BEFORE, "")
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while life and time.monotonic() < deadline:
        pids = [pid for pid in all_pids() if _has_variable(pid, LIFE, life)]
        if not pids:
            break
        _kill_all(pids)
        killed |= set(pids)
        time.sleep(_POLL_S)
    return sorted(killed)


def end_descendants(timeout_s: float) -> None:
    """Kill all descendants of this process, by their parents: the environment of a hanging process is unreadable."""
    deadline = time.monotonic() + timeout_s
    while (pids := find_descendants()) and time.monotonic() < deadline:
        _kill_all(pids)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_S)


def _kill_all(pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _signal_until_ended(mark_value: str, signal_number: int, timeout_s: float) -> set[int]:
    """Signal every marked process once, including new ones; return those that were signalled."""
    deadline = time.monotonic() + timeout_s
    signalled: set[int] = set()
    empty_scans = 0
    # Two empty scans: during an exec a process has no environment.
    while empty_scans < 2:
        pids = find_marked(mark_value)
        empty_scans = 0 if pids else empty_scans + 1
        signalled.update(pid for pid in set(pids) - signalled if _send(pid, mark_value, signal_number))
        if pids and time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    return signalled


def _send(pid: int, mark_value: str, signal_number: int) -> bool:
    """Signal the process if it has the mark; its pid may belong to another process by now."""
    with contextlib.ExitStack() as stack, contextlib.suppress(ProcessLookupError):
        pidfd = _open_pidfd(pid)
        if pidfd is not None:
            stack.callback(os.close, pidfd)
        # Checked after the pidfd was opened: then it refers to this process. Without pidfds the race is microseconds.
        if not _has_variable(pid, MARK, mark_value):
            return False
        _kill(pid, pidfd, signal_number)
        with contextlib.suppress(ProcessLookupError):
            _kill(pid, pidfd, signal.SIGCONT)  # a stopped process handles SIGTERM only after this
        return True
    return False


def _kill(pid: int, pidfd: int | None, signal_number: int) -> None:
    if pidfd is None:
        os.kill(pid, signal_number)
    else:
        signal.pidfd_send_signal(pidfd, signal_number)


def _open_pidfd(pid: int) -> int | None:
    """Return None if the kernel (before 5.3), the Python build or a seccomp filter has no pidfds."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def _has_variable(pid: int, variable: str, value: str) -> bool:
    """Return False for other users' processes, zombies (without environment) and those that have ended."""
    entry = Path("/proc", str(pid))
    try:
        if entry.stat().st_uid != os.getuid():
            return False
        environ = (entry / "environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"{variable}={value}") in environ.split(b"\0")


def find_descendants(of: int | None = None) -> list[int]:
    """Return the descendants of a process, by default of this one."""
    root = os.getpid() if of is None else of
    parents, found = {pid: parent_of(pid) for pid in all_pids()}, {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {root})


def _self_and_ancestors() -> set[int]:
    pids: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        pid = parent_of(pid)
    return pids


def parent_of(pid: int) -> int:
    """Return the parent's pid; 0 if the process has ended."""
    fields = read_stat(pid)
    return int(fields[1]) if fields else 0


def command_line(pid: int | str) -> list[bytes]:
    """Return the arguments of a process; empty if it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")
