"""Lock of a run: one controller per run, on any machine. Standard library only.

    lease/7.json     the holder of the lock; written under a temporary name, then linked to the next free number
    lease/7.ended    the holder has released the lock

The highest number (the epoch) holds the lock. Fencing: a process that sees a newer epoch must stop writing. link() is
atomic, also on file systems without locks. The holder sets the mtime of its file every BEAT_S. A waiting process counts
its own observations of that mtime, so clock skew and a file system that hung do not look like silence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from slurm_rl.errors import LeaseError
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.process_stat import machine_id, started_at

RESUME = "resume"
"""Launcher of a holder that only submits, and hands the run to the controller that it started."""
BEAT_S = 10.0
SILENCE_S = 60.0
"""A holder without a heartbeat for this time is dead, or its network is."""
_LOOK_S = 1.0
# A command that submits may wait for a cluster that is slow to answer.
_SUBMIT_S = 900.0
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}

Verdict = Literal["take", "refuse", "watch", "wait"]


@dataclass(frozen=True)
class LockHolder:
    """A process that owns the lock of a run, or wants it."""

    launcher: str
    job: str
    restart: int
    """Number of times the scheduler has started the job again."""
    host: str
    machine: str
    """Scope of a pid: the kernel's boot id and the pid namespace; "" if unknown."""
    pid: int
    started: int
    """Start time by the kernel's clock, since pids are reused."""

    @classmethod
    def of_this_process(cls, launcher: str, job: str, restart: int = 0) -> LockHolder:
        pid = os.getpid()
        return cls(launcher, job, restart, socket.gethostname(), machine_id(), pid, started_at(pid) or 0)

    def __str__(self) -> str:
        name = "a command that resumes it" if self.launcher == RESUME else f"{self.launcher} job {self.job}"
        return f"{name} (process {self.pid} on {self.host})"


class LockState(NamedTuple):
    """State of the newest epoch; epoch 0, which has ended, if the run never had a holder."""

    epoch: int
    holder: LockHolder | None
    """None if its file cannot be read."""
    is_ended: bool
    beat: int

    def __str__(self) -> str:
        return str(self.holder or "an unreadable holder")


def decide(
    seen: LockState,
    own: LockHolder,
    is_known_alive: Callable[[LockHolder], bool],
    before: tuple[int, int] | None = None,
) -> Verdict:
    """Decide how to treat the holder of the lock.

    Args:
        is_known_alive: the scheduler reports that the holder's job runs.
        before: epoch and heartbeat at the last look.
    """
    holder = seen.holder
    if seen.is_ended:
        return "take"
    has_moved = before is not None and (seen.epoch, seen.beat) != before and seen.epoch == before[0]
    if holder is None:
        return "refuse" if has_moved else "watch"
    is_same_job = (holder.launcher, holder.job) == (own.launcher, own.job)
    if is_same_job and holder.restart != own.restart:
        # The scheduler restarted the job, so its former start has ended.
        return "take" if own.restart > holder.restart else "refuse"
    # A submitting process releases the lock soon, perhaps to the caller.
    if_alive: Verdict = "wait" if holder.launcher == RESUME != own.launcher else "refuse"
    if holder.machine and holder.machine == own.machine:
        return if_alive if started_at(holder.pid) == holder.started else "take"
    return if_alive if has_moved or (not is_same_job and is_known_alive(holder)) else "watch"


class RunLock:
    """A run lock that this process holds; the context manager releases it."""

    def __init__(self, folder: Path, epoch: int, beat_s: float) -> None:
        self.folder, self.epoch = folder, epoch
        self.lost: LeaseError | None = None
        """Set when another controller has the lock; up to one heartbeat late, so use it for loops only."""
        self._beat_s, self._is_over = beat_s, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(self._beat_s)
        with contextlib.suppress(OSError):  # on a full disk, the next controller sees that this process has ended
            _link(self.folder / f"{self.epoch}.json", self.folder / f"{self.epoch}.ended")

    def _beat(self) -> None:
        while not self._is_over.wait(self._beat_s):
            try:
                os.utime(self.folder / f"{self.epoch}.json")
                require_epoch(self.folder, self.epoch)
            except LeaseError as error:
                self.lost = error
                return
            except OSError:
                continue  # a file system that does not answer; the next write reports it


def acquire(
    folder: Path,
    own: LockHolder,
    is_known_alive: Callable[[LockHolder], bool] = lambda holder: False,
    is_stopped: Callable[[], bool] = lambda: False,
    *,
    beat_s: float = BEAT_S,
    silence_s: float = SILENCE_S,
    look_s: float = _LOOK_S,
) -> RunLock:
    """Acquire the lock, at once or after its holder has been silent for `silence_s`.

    Args:
        is_known_alive: see `decide`.
        is_stopped: ends the waiting.

    Raises:
        LeaseError: a live controller holds the lock, or `is_stopped` returned True.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    give_up_at, has_reported, before, num_silent = time.monotonic() + _SUBMIT_S, False, None, 0
    while True:
        seen = read_lock(folder)
        verdict = decide(seen, own, is_known_alive, before)
        now = seen.epoch, seen.beat
        num_silent, before = (num_silent + 1 if now == before else 0), now
        if verdict == "take" or (verdict == "watch" and num_silent >= round(silence_s / look_s)):
            if _claim(folder, seen.epoch + 1, own):
                return RunLock(folder, seen.epoch + 1, beat_s)
            continue
        if verdict == "refuse" or is_stopped() or time.monotonic() > give_up_at:
            cancel = f"python -m slurm_rl cancel {shlex.quote(str(folder.parent))}"
            action = f"wait for its end, or end it first: {cancel}"
            rule = "a run can have only one controller at a time"
            raise LeaseError(rule, seen=f"{seen} has {folder.parent}", action=action)
        if not has_reported:
            log_to_stderr(f"{seen} did not give the run up; looking for {silence_s:g} s whether it lives")
            has_reported = True
        time.sleep(look_s)


def _claim(folder: Path, epoch: int, own: LockHolder) -> bool:
    """Return True if this process acquired the epoch."""
    with tempfile.NamedTemporaryFile(prefix=".", dir=folder) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(json.dumps(asdict(own)).encode())
        file.flush()
        os.fsync(file.fileno())
        return _link(Path(file.name), folder / f"{epoch}.json")


def _link(source: Path, target: Path) -> bool:
    """Hard-link `source` to `target`; copy it where links are not supported. Return False if `target` exists."""
    try:
        os.link(source, target)
    except FileExistsError:
        # NFS may have linked the file and lost its reply.
        return source.samefile(target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            target.open("xb").write(source.read_bytes())
        except FileExistsError:
            return False
    return True


def read_lock(folder: Path) -> LockState:
    """Return the state of the lock."""
    (epoch, is_ended), holder, beat = _newest(folder), None, 0
    path = folder / f"{epoch}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        beat = path.stat().st_mtime_ns
        holder = LockHolder(**json.loads(path.read_text(encoding="utf-8")))
    return LockState(epoch, holder, is_ended, beat)


def require_epoch(folder: Path, epoch: int) -> None:
    """Raise LeaseError if another controller has a higher epoch than `epoch`."""
    if _newest(folder)[0] > epoch:
        rule = "another controller owns the run now, so this one stops writing"
        raise LeaseError(rule, seen=str(read_lock(folder)))


def _newest(folder: Path) -> tuple[int, bool]:
    """Return the highest epoch and whether its holder has released it; 0 and True without a holder."""
    # Network file systems cache listings for a minute; a local change invalidates the cache.
    with contextlib.suppress(OSError):
        os.utime(folder)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    epoch = max((int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name)), default=0)
    return epoch, not epoch or f"{epoch}.ended" in names
