"""File systems that take no more: which one it is, and the room that a run keeps for its last words.

Standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT}
_RESERVE_BYTES = 1 << 20


def is_full(error: BaseException) -> bool:
    """Whether a file system or a quota has no room; torch says so in a RuntimeError's words alone."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return any(os.strerror(code) in str(error) for code in _FULL)


def describe_disk(path: Path) -> str:
    """Which file system holds `path` and what it has left: `/scratch has 0.0 of 512.0 GB free, 12 of 900 files`.

    A quota shows in the error's own words (`Disk quota exceeded`), not here.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
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
        with path.open("wb") as file:
            file.write(os.urandom(_RESERVE_BYTES))  # what can be compressed would hold less
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def say(text: str) -> None:
    """To stderr, which may be a file on the same full disk."""
    with contextlib.suppress(OSError, ValueError):
        print(f"slurm_rl: {text}", file=sys.stderr, flush=True)
