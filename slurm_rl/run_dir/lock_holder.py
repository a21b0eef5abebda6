"""Rules for the owner of a run lock and for processes that want the lock. Standard library only."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

RESUME = "resume"
"""Launcher of a holder that only submits, and gives the run to the controller that it started."""

Verdict = Literal["take", "refuse", "watch", "wait"]


@dataclass(frozen=True)
class LockHolder:
    """A process that owns the lock of a run, or wants it."""

    launcher: str
    job: str
    restart: int
    """How often the scheduler has started the job again."""
    host: str
    machine: str
    """Scope of a pid: the kernel's boot id and the pid namespace; "" if unknown."""
    pid: int
    started: int
    """When the process began, as the kernel counts: numbers are given again."""

    @classmethod
    def of_this_process(cls, launcher: str, job: str, restart: int = 0) -> LockHolder:
        pid = os.getpid()
        return cls(launcher, job, restart, socket.gethostname(), this_machine(), pid, started_at(pid) or 0)

    def __str__(self) -> str:
        name = "a command that resumes it" if self.launcher == RESUME else f"{self.launcher} job {self.job}"
        return f"{name} (process {self.pid} on {self.host})"


class LockState(NamedTuple):
    """State of the newest epoch."""

    epoch: int
    holder: LockHolder | None
    """None if its file cannot be read."""
    is_ended: bool
    beat: int


def decide(seen: LockState, own: LockHolder, is_known_alive: Callable[[LockHolder], bool]) -> Verdict:
    """Decide how to treat the holder of the lock.

    Args:
        is_known_alive: returns True if the scheduler reports that the job of the holder runs.
    """
    holder = seen.holder
    if seen.is_ended:
        return "take"
    if holder is None:
        return "watch"
    is_same_job = (holder.launcher, holder.job) == (own.launcher, own.job)
    if is_same_job and holder.restart != own.restart:
        # The scheduler restarted the job, so its former start has ended.
        return "take" if own.restart > holder.restart else "refuse"
    if holder.machine and holder.machine == own.machine:
        return _judge_living(holder, own) if started_at(holder.pid) == holder.started else "take"
    return _judge_living(holder, own) if not is_same_job and is_known_alive(holder) else "watch"


def _judge_living(holder: LockHolder | None, own: LockHolder) -> Verdict:
    # A submitting process releases the lock soon, perhaps to the caller.
    return "wait" if holder is not None and holder.launcher == RESUME != own.launcher else "refuse"


class HeartbeatWatch:
    """Count observations of an owner whose state is unknown; see `judge`."""

    def __init__(self, own: LockHolder, num_looks: int) -> None:
        self.own, self.num_looks, self.num_silent = own, num_looks, 0
        self.seen = (0, 0)

    def look(self, seen: LockState) -> Verdict:
        now = (seen.epoch, seen.beat)
        has_moved = self.seen[0] == now[0] and self.seen != now
        self.num_silent = self.num_silent + 1 if self.seen == now else 0
        self.seen = now
        if has_moved:
            return _judge_living(seen.holder, self.own)
        return "take" if self.num_silent >= self.num_looks else "watch"


def this_machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def started_at(pid: int) -> int | None:
    """Return None for a process that has ended, including zombies."""
    fields = read_stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name: state, parent, ...; [] for an ended process."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return []
    # The name is in parentheses and may contain spaces and parentheses.
    return stat.rpartition(")")[2].split()
