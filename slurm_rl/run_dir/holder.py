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
class Holder:
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
    def of_this_process(cls, launcher: str, job: str, restart: int = 0) -> Holder:
        pid = os.getpid()
        return cls(launcher, job, restart, socket.gethostname(), this_machine(), pid, started_at(pid) or 0)

    def __str__(self) -> str:
        what = "a command that resumes it" if self.launcher == RESUME else f"{self.launcher} job {self.job}"
        return f"{what} (process {self.pid} on {self.host})"


class Standing(NamedTuple):
    """The newest number as it is now."""

    epoch: int
    holder: Holder | None
    """None when its file cannot be read."""
    is_ended: bool
    beat: int


def judge(seen: Standing, own: Holder, is_known_alive: Callable[[Holder], bool]) -> Verdict:
    """Decide how to treat the owner of the lock.

    Args:
        is_known_alive: the scheduler reports that the owner's job is running.
    """
    holder = seen.holder
    if seen.is_ended:
        return "take"
    if holder is None:
        return "watch"
    is_same_job = (holder.launcher, holder.job) == (own.launcher, own.job)
    if is_same_job and holder.restart != own.restart:
        # One job started again: the former start is over, whether it knows that or not.
        return "take" if own.restart > holder.restart else "refuse"
    if holder.machine and holder.machine == own.machine:
        return _judge_living(holder, own) if started_at(holder.pid) == holder.started else "take"
    return _judge_living(holder, own) if not is_same_job and is_known_alive(holder) else "watch"


def _judge_living(holder: Holder | None, own: Holder) -> Verdict:
    # A submitting process releases the lock soon, perhaps to the caller.
    return "wait" if holder is not None and holder.launcher == RESUME != own.launcher else "refuse"


class BeatWatch:
    """Count observations of an owner whose state is unknown; see `judge`."""

    def __init__(self, own: Holder, num_looks: int) -> None:
        self.own, self.num_looks, self.num_silent = own, num_looks, 0
        self.seen = (0, 0)

    def look(self, seen: Standing) -> Verdict:
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
