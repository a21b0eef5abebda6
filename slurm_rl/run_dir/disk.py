"""File systems that fail: what a run does then, which one it is, and the room that it keeps for its last words.

One rule for all that is written, in whatever process:

    refuses   (full, over quota, read-only, its device or server failing)  What cannot be written ends the attempt,
              with the path, the system's word and the next action as its cause; a checkpoint that was not whole
              goes, older ones stay. Further attempts follow as after any failure (job.max_failures), the next one
              within a minute once there is room, and `resume` goes on from the newest checkpoint. An event, which a
              run can do without, costs itself alone and is told on stderr.
    hangs     Who writes or reads waits, for it may come back; then all goes on. A run that the user stops does not
              wait: see hang.py.

Standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_NEXT = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "remove files of yours there, or have the quota raised",
    errno.EROFS: "have it mounted for writing",
    errno.EIO: "have its device or server looked at",
    errno.ESTALE: "have it mounted anew",
}
"""By what a file system says when it refuses, and not the path or its rights."""
_RESERVE_BYTES = 1 << 20


def find_refusal(error: object) -> int | None:
    """The errno when a file system refuses; Rust and C++ libraries, and shutil, say so in words alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _NEXT else None
    return next((code for code in _NEXT if os.strerror(code) in str(error)), None)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What a file system refuses in the block becomes an OSError that names the path: a failed `write` names none."""
    try:
        yield
    except Exception as error:
        code = find_refusal(error)
        if code is None:
            raise
        if not isinstance(error, OSError) or error.errno is None:
            raise OSError(code, os.strerror(code), str(path)) from error
        if error.filename is None:
            error.filename = str(path)
        raise


def explain_refusal(error: BaseException, path: Path) -> str | None:
    """Path, the system's word, the file system and what to do; None when the error is no refusal.

    Args:
        path: of what was written, where the error names none.
    """
    code = find_refusal(error)
    if code is None:
        return None
    named = getattr(error, "filename", None)
    where = describe_disk(Path(os.fsdecode(named)) if isinstance(named, str | bytes) else path)
    return f"a file system must take what is written; got {error}; {where}. Next: {next_action(error)}"


def next_action(error: object) -> str:
    """What the user should do about a refusal; also one that is told in words alone."""
    code = find_refusal(error)
    return _NEXT[code] if code is not None else "make that file system writable"


def describe_disk(path: Path) -> str:
    """Which file system holds `path` and what it has left: `/scratch has 0.0 of 512.0 GB free, 12 of 900 files`.

    A quota shows in the error's own words (`Disk quota exceeded`), not here.
    """
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        device, mount = path.stat().st_dev, path.absolute()
        while mount != mount.parent and mount.parent.stat().st_dev == device:
            mount = mount.parent
        found = os.statvfs(path)
    except OSError as error:
        return f"{path} does not answer ({error.strerror})"
    free, size = (blocks * found.f_frsize / 1e9 for blocks in (found.f_bavail, found.f_blocks))
    files = f", {found.f_favail} of {found.f_files} files" if found.f_files else ""
    return f"{mount} has {free:.1f} of {size:.1f} GB free{files}"


def keep_room(path: Path) -> None:
    """Make a file that holds a megabyte, to be removed when the disk is full and something must still be said.

    Raises:
        OSError: there is not even this much room.
    """
    if path.is_file() and path.stat().st_size == _RESERVE_BYTES:
        return
    try:
        with naming(path), path.open("wb") as file:
            file.write(os.urandom(_RESERVE_BYTES))  # what can be compressed would hold less
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading; never wait for one that is a FIFO or a device, as in a folder that others write to.

    Args:
        follow: also where the last part of the path is a link.

    Raises:
        OSError: it is missing, cannot be read, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def say(text: str) -> None:
    """To stderr, which may be a file on the same full disk."""
    with contextlib.suppress(OSError, ValueError):
        print(f"slurm_rl: {text}", file=sys.stderr, flush=True)


def fsync_path(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
