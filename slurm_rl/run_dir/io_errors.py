"""File system errors: their diagnosis, and disk space reserved for the last messages of a run. Standard library only.

Every process of a run follows one rule for writes:

    refused   The disk is full, over quota, read-only, or its device or server fails. The attempt ends; its cause
              names the path, the error and the next action. An incomplete checkpoint is deleted, older ones stay.
              Further attempts follow as after any failure (job.max_failures), the next one within a minute of free
              space, and `resume` continues from the newest checkpoint. A run can do without an event: an event that
              cannot be written is dropped and reported on stderr.
    hangs     Readers and writers wait, as the file system may recover. A run that the user stops does not wait: see
              fs_probe.py.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_NEXT = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "remove your files there, or request a larger quota",
    errno.EROFS: "have it mounted for writing",
    errno.EIO: "have its device or server looked at",
    errno.ESTALE: "have it mounted anew",
}
"""Next action by errno, for errors of the file system. Errors of the path or its permissions are absent."""
_RESERVE_BYTES = 1 << 20


def io_error_code(error: object) -> int | None:
    """Return the errno of a file system error, or None. Rust and C++ libraries and shutil report it only as text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _NEXT else None
    return next((code for code in _NEXT if os.strerror(code) in str(error)), None)


@contextlib.contextmanager
def annotate_path(path: Path) -> Iterator[None]:
    """Add the path to file system errors of the block: the error of a failed `write` has no path."""
    try:
        yield
    except Exception as error:
        code = io_error_code(error)
        if code is None:
            raise
        if not isinstance(error, OSError) or error.errno is None:
            raise OSError(code, os.strerror(code), str(path)) from error
        if error.filename is None:
            error.filename = str(path)
        raise


def explain_io_error(error: BaseException, path: Path) -> str | None:
    """Return a message with path, error, file system and next action, or None for other errors.

    Args:
        path: used if the error has no path.
    """
    code = io_error_code(error)
    if code is None:
        return None
    named = getattr(error, "filename", None)
    where = describe_disk(Path(os.fsdecode(named)) if isinstance(named, str | bytes) else path)
    return f"a file system must accept writes; got {error}; {where}. Next: {next_action(error)}"


def next_action(error: object) -> str:
    """Return the next action for a file system error, including errors reported only as text."""
    code = io_error_code(error)
    return _NEXT[code] if code is not None else "make that file system writable"


def describe_disk(path: Path) -> str:
    """Return mount and free space of `path`: `/scratch has 0.0 of 512.0 GB free, 12 of 900 files`.

    A quota appears in the error message (`Disk quota exceeded`), not here.
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


def reserve_space(path: Path) -> None:
    """Write a file of 1 MiB, which a run deletes on a full disk to make space for its last messages."""
    if path.is_file() and path.stat().st_size == _RESERVE_BYTES:
        return
    try:
        with annotate_path(path), path.open("wb") as file:
            file.write(os.urandom(_RESERVE_BYTES))  # random bytes cannot be compressed
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading. A FIFO or a device, which other users may create, does not block.

    Args:
        follow: follow a symbolic link at the end of the path.

    Raises:
        OSError: the file is missing, unreadable or not regular.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def log_to_stderr(text: str) -> None:
    """Print `text` to stderr; ignore errors, as stderr may be a file on the full disk."""
    with contextlib.suppress(OSError, ValueError):
        print(f"slurm_rl: {text}", file=sys.stderr, flush=True)


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def written_beside(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes or replaces `folder` when the block ends, and is removed if it raises.

    Raises:
        OSError: it cannot be written; names a path.
    """
    tag = secrets.token_hex(4)
    beside, replaced = (folder.parent / f".{folder.name}.{kind}-{tag}" for kind in ("tmp", "old"))
    with annotate_path(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        try:
            yield beside
            _open_to_others(beside)
            fsync_tree(beside)
            if folder.exists():
                folder.rename(replaced)
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        fsync_path(folder.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def _open_to_others(folder: Path) -> None:
    """Give files the mode of the user's umask: safetensors writes files that only the owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~mask)


def fsync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() or path.is_dir():
            fsync_path(path)
    fsync_path(folder)
