"""One controller a run, from whatever machine it is started. Standard library alone.

    lease/7.json     who holds the run: written under another name, then linked to a number that nobody has
    lease/7.ended    its holder has given it up

The highest number holds the run. Everything its controller starts knows the number (the epoch) and looks for a
higher one before it writes something that counts: whoever finds one has lost the run and writes nothing more.
link() is what exactly one of several can do, also where a file system keeps no locks. A holder sets its file's
time anew every BEAT_S; whoever waits for its end looks whether that moves and counts its own looks, so neither
the clocks of two machines nor a file system that hung are mistaken for silence.
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
from slurm_rl.run_dir.holder import BeatWatch, Holder, Standing, Verdict, judge

BEAT_S = 10.0
SILENCE_S = 60.0
"""Who has set no time for so long is dead: its machine, or the network to it."""
_LOOK_S = 1.0
# A command that submits may wait for a cluster that is slow to answer.
_SUBMIT_S = 900.0
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}


class Lease:
    """A run that this process holds; as a context manager it gives the run up at the end."""

    def __init__(self, folder: Path, epoch: int, beat_s: float) -> None:
        self.folder, self.epoch = folder, epoch
        self.lost: LeaseError | None = None
        """Once another has the run; for loops, as it is known a beat late."""
        self._beat_s, self._is_over = beat_s, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join(self._beat_s)
        with contextlib.suppress(OSError):  # on a full disk the next one finds a process that is gone
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
                continue  # a file system that does not answer; who writes next will say so


def take(
    folder: Path,
    own: Holder,
    is_known_alive: Callable[[Holder], bool] = lambda holder: False,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    on_wait: Callable[[str], None] = lambda text: None,
    beat_s: float = BEAT_S,
    silence_s: float = SILENCE_S,
    look_s: float = _LOOK_S,
) -> Lease:
    """Hold the run, at once or after its holder has been silent for long enough.

    Args:
        is_known_alive: see `judge`.
        is_stopped: ends the waiting.
        on_wait: is told once for whom it waits.

    Raises:
        LeaseError: another holds it and lives; or asked to stop meanwhile.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    watch, give_up_at, told = BeatWatch(own, round(silence_s / look_s)), time.monotonic() + _SUBMIT_S, False
    while True:
        seen = read_standing(folder)
        verdict: Verdict = "take" if seen is None else judge(seen, own, is_known_alive)
        if verdict == "watch" and seen is not None:
            verdict = watch.look(seen)
        if verdict == "take":
            epoch = 1 if seen is None else seen.epoch + 1
            if _claim(folder, epoch, own):
                return Lease(folder, epoch, beat_s)
            continue
        if verdict == "refuse" or is_stopped() or time.monotonic() > give_up_at:
            raise _refuse(folder.parent, seen)
        if not told:
            on_wait(f"{_say(seen)} did not give the run up; looking for {silence_s:g} s whether it lives")
            told = True
        time.sleep(look_s)


def _refuse(run_dir: Path, seen: Standing | None) -> LeaseError:
    return LeaseError(
        "a run has one controller at a time",
        seen=f"{_say(seen)} has {run_dir}",
        action=f"wait for its end, or end it first: python -m slurm_rl cancel {shlex.quote(str(run_dir))}",
    )


def _claim(folder: Path, epoch: int, own: Holder) -> bool:
    """Whether this process is the one that got the number."""
    content = json.dumps(asdict(own)).encode()
    beside = folder / f".{own.pid}-{secrets.token_hex(8)}"
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return _link(beside, folder / f"{epoch}.json", content)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _link(source: Path, target: Path, content: bytes) -> bool:
    """Whether `target`, which is one file with `source`, was made here; a file with `content` where nothing links."""
    try:
        os.link(source, target)
    except FileExistsError:
        # NFS may have done it and lost its answer.
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


# ---- what is there -------------------------------------------------------------------------------


def read_standing(folder: Path) -> Standing | None:
    """Who holds the run; None when nobody ever did."""
    names = _names(folder)
    epoch = _newest(names)
    if not epoch:
        return None
    path = folder / f"{epoch}.json"
    holder, beat = None, 0
    with contextlib.suppress(OSError, ValueError, TypeError):
        beat = path.stat().st_mtime_ns
        holder = Holder(**json.loads(path.read_text(encoding="utf-8")))
    return Standing(epoch, holder, f"{epoch}.ended" in names, beat)


def require_epoch(folder: Path, epoch: int) -> None:
    """Return while this is the highest number.

    Raises:
        LeaseError: another controller has the run now.
    """
    if _newest(_names(folder)) > epoch:
        standing = read_standing(folder)
        raise LeaseError("another controller has the run now, so nothing more is written", seen=_say(standing))


def _newest(names: set[str]) -> int:
    stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return max((int(stem) for stem in stems if stem.isdigit()), default=0)


def _names(folder: Path) -> set[str]:
    # A network file system remembers for a minute what a folder held, unless it was changed from here.
    with contextlib.suppress(OSError):
        os.utime(folder)
    try:
        return {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return set()


def _say(standing: Standing | None) -> str:
    return "somebody who cannot be read" if standing is None or standing.holder is None else str(standing.holder)
