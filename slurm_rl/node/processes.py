"""Which processes are ours, and how each of them is ended, and no other.

A process tree is not enough to find them: Ray daemonises, vLLM starts its own sessions, and whoever
loses its parent hangs on init. What every descendant keeps is the environment it was born with, so
the agent gives its children a mark there and later looks for it in /proc/<pid>/environ. This finds
children that left the session, the process group and the tree, and spares a second job of the same
user on the same node, which `ray stop` or a pkill by name would end too.

The agent calls `become_subreaper` once, starts everything with `mark_env` in the environment, and
calls `end_marked` at the end of the attempt.
"""

from __future__ import annotations

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
from slurm_rl.run_dir.holder import read_stat
from slurm_rl.run_dir.run_dir import RunDir

MARK = "SLURM_RL_ATTEMPT"
"""The environment variable; its value names run, attempt and node rank."""

LIFE, LIFE_BEFORE = "SLURM_RL_ACTOR", "SLURM_RL_ACTOR_BEFORE"
"""Environment variables of a Ray actor: the name of this life of it, and of the one that it replaces, which is over."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.03
# SIGKILL works at once, except on a process that hangs in the kernel (a dead NFS server, a GPU reset).
_KILL_DEADLINE_S = 20.0
# Loaded here and not in the functions: after a fork, dlopen may wait for a lock that nobody will free.
_libc = ctypes.CDLL(None, use_errno=True)


def mark_env(mark_value: str) -> dict[str, str]:
    """The variables by which everything a process starts can be found again.

    SPT_NOENV is a part of the mark: without it setproctitle (in every Ray worker and vLLM engine)
    writes the title over /proc/<pid>/environ, and with the environment the mark is gone.
    """
    return {MARK: mark_value, "SPT_NOENV": "1"}


def attempt_mark(run: RunDir, job_key: str, attempt: int, rank: int) -> str:
    """The mark of everything that one node's agent starts in one attempt."""
    return f"{job_key}:{attempt}:{rank}:{run.path}"


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's, so that it can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int, parent_pid: int) -> None:
    """To run in a child between fork and exec: the child gets the signal when its parent dies.

    The kernel means the parent's thread that forked, so start such children from the main thread.
    """
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent_pid:  # it died before the line above
        os.kill(os.getpid(), signal_number)


def has_ended(process: subprocess.Popen[bytes] | None) -> bool:
    """Whether there was a process, and it is no more."""
    return process is not None and process.poll() is not None


def start_child(argv: Sequence[str], env: Mapping[str, str], log: Path, death_signal: int) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that a terminal's Ctrl-C does not reach it.

    Args:
        log: gets its output, behind what is there.
        death_signal: what it gets when this process dies.
    """
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
    """All that this process and its children say from here on goes there: srun names files by numbers of its own."""
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def find_marked(mark_value: str) -> list[int]:
    """Living processes of this user that carry the mark; never this process or one it descends from."""
    spared = _self_and_ancestors()
    return sorted(pid for pid in all_pids() if pid not in spared and _is_marked(pid, mark_value))


def all_pids() -> list[int]:
    """Every process that this one can see."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def end_marked(mark_value: str, grace_s: float, own_children: Collection[int] = ()) -> list[int]:
    """End every marked process: SIGTERM, after `grace_s` SIGKILL, until none is left.

    Args:
        mark_value: what `mark_env` was given.
        grace_s: how long a process may take to end by itself.
        own_children: pids that the caller will `wait()` for; the others are reaped here, and a Popen
            whose child somebody else has reaped reports the exit code 0.

    Returns:
        The pids that did not end by themselves.

    Raises:
        SlurmRLError: a process outlived SIGKILL.
    """
    asked = _signal_until_gone(mark_value, signal.SIGTERM, grace_s)
    killed = _signal_until_gone(mark_value, signal.SIGKILL, _KILL_DEADLINE_S)
    for pid in (asked | killed) - set(own_children):
        with contextlib.suppress(ChildProcessError):  # not ours to reap: its own parent lives, or it is gone
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
    """SIGKILL to what is left of the actor whose place this process takes: one that is stopped, or hangs, or its
    children, who hold a GPU. Returns their pids; waits until they are gone."""
    life = os.environ.get(LIFE_BEFORE, "")
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while life and (found := [pid for pid in all_pids() if _has(pid, LIFE, life)]) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= set(found)
        time.sleep(_POLL_S)
    return sorted(killed)


def _signal_until_gone(mark_value: str, signal_number: int, timeout_s: float) -> set[int]:
    """Signal every marked process once, also those born meanwhile; returns who was signalled."""
    deadline = time.monotonic() + timeout_s
    signalled: set[int] = set()
    empty_scans = 0
    # Twice empty, because in the middle of an exec a process has no environment for an instant.
    while empty_scans < 2:
        found = find_marked(mark_value)
        empty_scans = 0 if found else empty_scans + 1
        signalled.update(pid for pid in set(found) - signalled if _send(pid, mark_value, signal_number))
        if found and time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    return signalled


def _send(pid: int, mark_value: str, signal_number: int) -> bool:
    """Signal the process if it carries the mark now; its pid may have become another's. True: signalled."""
    with contextlib.ExitStack() as stack, contextlib.suppress(ProcessLookupError):
        pidfd = _open_pidfd(pid)
        if pidfd is not None:
            stack.callback(os.close, pidfd)
        # The mark is read after the pidfd was opened: if it is there, the pidfd is either that process
        # or one that is dead already. Without pidfds the gap between look and signal is microseconds.
        if not _is_marked(pid, mark_value):
            return False
        _kill(pid, pidfd, signal_number)
        with contextlib.suppress(ProcessLookupError):
            _kill(pid, pidfd, signal.SIGCONT)  # a stopped process acts on SIGTERM only once it goes on
        return True
    return False


def _kill(pid: int, pidfd: int | None, signal_number: int) -> None:
    if pidfd is None:
        os.kill(pid, signal_number)
    else:
        signal.pidfd_send_signal(pidfd, signal_number)


def _open_pidfd(pid: int) -> int | None:
    """None where the kernel (before 5.3), the Python build or a seccomp filter has no pidfds."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def _is_marked(pid: int, mark_value: str) -> bool:
    return _has(pid, MARK, mark_value)


def _has(pid: int, variable: str, value: str) -> bool:
    """False for other users' processes, zombies (they have no environment) and those that just left."""
    entry = Path("/proc", str(pid))
    try:
        if entry.stat().st_uid != os.getuid():
            return False
        environ = (entry / "environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"{variable}={value}") in environ.split(b"\0")


def end_descendants(timeout_s: float) -> None:
    """SIGKILL to all processes below this one, orphans too where it is a subreaper, until none is left or it is late.

    By /proc/<pid>/stat alone: the environment of a process that hangs in the kernel cannot always be read.
    """
    deadline = time.monotonic() + timeout_s
    while (pids := find_descendants()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_S)


def find_descendants(of: int | None = None) -> list[int]:
    """Return the children of a process (None: this one), theirs, and so on."""
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
    """0 for a process that is gone."""
    fields = read_stat(pid)
    return int(fields[1]) if fields else 0


def command_line(pid: int | str) -> list[bytes]:
    """The words that a process was started with; none of one that is gone."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")
