"""Lock of a run: one controller per run, on any machine. Standard library only.

    lease/7.json     the holder of the lock; written under a temporary name, then linked to the next free number
    lease/7.ended    the holder has released the lock

The highest number holds the lock. Every process of a controller knows its number (the epoch) and checks for a higher
one before a write that counts. Fencing: a process that sees a newer epoch must stop writing.

link() is atomic, also on file systems without locks. The holder sets the mtime of its file every BEAT_S. A waiting
process counts its own observations of that mtime, so clock skew and a file system that hung do not look like silence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from slurm_rl.errors import LeaseError
from slurm_rl.run_dir.lock_holder import HeartbeatWatch, LockHolder, LockState, Verdict, decide

BEAT_S = 10.0
SILENCE_S = 60.0
"""A holder without a heartbeat for this time is dead, or its network is."""
_LOOK_S = 1.0
# A command that submits may wait for a cluster that is slow to answer.
_SUBMIT_S = 900.0
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join(self._beat_s)
        with contextlib.suppress(OSError):  # on a full disk, the next controller finds that this process has ended
            _link(self.folder / f"{self.epoch}.json", self.folder / f"{self.epoch}.ended", b"")

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
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    on_wait: Callable[[str], None] = lambda text: None,
    beat_s: float = BEAT_S,
    silence_s: float = SILENCE_S,
    look_s: float = _LOOK_S,
) -> RunLock:
    """Acquire the lock, at once or after its holder has been silent for `silence_s`.

    Args:
        is_known_alive: see `decide`.
        is_stopped: ends the waiting.
        on_wait: called once with the holder that this process waits for.

    Raises:
        LeaseError: a live controller holds the lock, or `is_stopped` returned True.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    watch, give_up_at, has_reported = (
        HeartbeatWatch(own, round(silence_s / look_s)),
        time.monotonic() + _SUBMIT_S,
        False,
    )
    while True:
        seen = read_lock(folder)
        verdict: Verdict = "take" if seen is None else decide(seen, own, is_known_alive)
        if verdict == "watch" and seen is not None:
            verdict = watch.look(seen)
        if verdict == "take":
            epoch = 1 if seen is None else seen.epoch + 1
            if _claim(folder, epoch, own):
                return RunLock(folder, epoch, beat_s)
            continue
        if verdict == "refuse" or is_stopped() or time.monotonic() > give_up_at:
            raise _refuse(folder.parent, seen)
        if not has_reported:
            on_wait(f"{_say(seen)} did not give the run up; looking for {silence_s:g} s whether it lives")
            has_reported = True
        time.sleep(look_s)


def _refuse(run_dir: Path, seen: LockState | None) -> LeaseError:
    return LeaseError(
        "a run has one controller at a time",
        seen=f"{_say(seen)} has {run_dir}",
        action=f"wait for its end, or end it first: python -m slurm_rl cancel {shlex.quote(str(run_dir))}",
    )


def _claim(folder: Path, epoch: int, own: LockHolder) -> bool:
    """Return True if this process acquired the epoch."""
    content = json.dumps(asdict(own)).encode()
    temporary = folder / f".{own.pid}-{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return _link(temporary, folder / f"{epoch}.json", content)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _link(source: Path, target: Path, content: bytes) -> bool:
    """Hard-link `source` to `target`; write `content` where links are not supported. Return False if it exists."""
    try:
        os.link(source, target)
    except FileExistsError:
        # NFS may have linked the file and lost its reply.
        return source.samefile(target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with target.open("xb") as file:
                file.write(content)
        except FileExistsError:
            return False
    return True


# ---- reading the lock -------------------------------------------------------------------------------


def read_lock(folder: Path) -> LockState | None:
    """Return the state of the lock, or None if the run never had a holder."""
    names = _names(folder)
    epoch = _newest(names)
    if not epoch:
        return None
    path = folder / f"{epoch}.json"
    holder, beat = None, 0
    with contextlib.suppress(OSError, ValueError, TypeError):
        beat = path.stat().st_mtime_ns
        holder = LockHolder(**json.loads(path.read_text(encoding="utf-8")))
    return LockState(epoch, holder, f"{epoch}.ended" in names, beat)


def require_epoch(folder: Path, epoch: int) -> None:
    """Check that `epoch` is still the highest number.

    Raises:
        LeaseError: another controller has the lock.
    """
    if _newest(_names(folder)) > epoch:
        standing = read_lock(folder)
        raise LeaseError("another controller has the run now, so nothing more is written", seen=_say(standing))


def _newest(names: set[str]) -> int:
    stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return max((int(stem) for stem in stems if stem.isdigit()), default=0)


def _names(folder: Path) -> set[str]:
    # Network file systems cache listings for a minute; a local change invalidates the cache.
    with contextlib.suppress(OSError):
        os.utime(folder)
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()


def _say(standing: LockState | None) -> str:
    return "somebody who cannot be read" if standing is None or standing.holder is None else str(standing.holder)
