"""Append-only files with one JSON object per line. Standard library only.

    writer:  lock, truncate an incomplete last line, append the row, unlock
    reader:  rows of complete lines; an incomplete last line is left for the next read

A crash may leave any part of the last line; the next append removes it. Readers skip a complete line that is no JSON
object (bad memory, a bad disk, an editor); it is reported by its number.
"""

import contextlib
import errno
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

from slurm_rl.run_dir.io_errors import annotate_path, log_to_stderr, open_regular

Row = dict[str, Any]

_CHUNK_BYTES = 65536
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_is_told = False
# A POSIX lock holds off other processes, not other threads of this one.
_threads = threading.Lock()


def append_row(path: Path, row: Row) -> int:
    """Append one line; the lock keeps lines whole when several nodes share the file over NFS.

    Returns:
        The number of bytes of an incomplete last line that were removed.

    Raises:
        OSError: the row cannot be written; the file then has no part of it that counts as a line.
    """
    line = json.dumps(row, allow_nan=False).encode() + b"\n"
    with annotate_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return _append(path, line)


def _append(path: Path, line: bytes) -> int:
    with _threads, path.open("ab+", buffering=0) as file:
        _lock(file.fileno(), path)
        size = os.fstat(file.fileno()).st_size
        end = _end_of_whole_lines(file.fileno(), size)
        if end < size:
            file.truncate(end)
        try:
            # A full disk first accepts a part without an error.
            while line:
                line = line[file.write(line) :]
        except OSError:
            with contextlib.suppress(OSError):  # then the next append does it
                file.truncate(end)
            raise
    return size - end


def _lock(fd: int, path: Path) -> None:
    """Lock out other processes; a file system without locks (Lustre mounted noflock) causes only a warning."""
    global _is_told
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if not _is_told:
            _is_told = True
            log_to_stderr(f"{path} cannot be locked ({error.strerror}): a line may be lost if two nodes write at once")


def _end_of_whole_lines(fd: int, size: int) -> int:
    """Return the offset of the end of the last complete line."""
    end = size
    while end > 0:
        begin = max(0, end - _CHUNK_BYTES)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def parse_row(line: bytes) -> Row | None:
    """Return the object on this line; None if it is damaged."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # RecursionError: a line of brackets
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> list[Row | None]:
    """Return every complete line, None for a damaged one; empty without the file."""
    return RowTail(path).read_lines()


def read_rows(path: Path) -> list[Row]:
    """Return the rows of the file without damaged lines."""
    return RowTail(path).read_new()


def find_damaged(path: Path) -> list[int]:
    """Return the numbers of damaged lines, from 1."""
    return [number for number, row in enumerate(read_lines(path), 1) if row is None]


def read_last_rows(path: Path, num_bytes: int) -> list[Row]:
    """Return the complete rows in the last `num_bytes` of the file."""
    return _read_part(path, num_bytes, from_end=True)


def read_first_rows(path: Path, num_bytes: int) -> list[Row]:
    """Return the complete rows in the first `num_bytes` of the file."""
    return _read_part(path, num_bytes, from_end=False)


def _read_part(path: Path, num_bytes: int, *, from_end: bool) -> list[Row]:
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - num_bytes) if from_end else 0)
            # The first piece may be the rest of a line, the last one the start of one.
            lines = file.read(num_bytes).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [row for row in map(parse_row, lines) if row is not None]


class RowTail:
    """Reads the rows that were added since the last read; a replaced file is read from its start.

    Args:
        from_end: skip the present rows.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._inode = -1
        self._offset = 0
        if from_end:
            self.read_lines()

    def read_new(self) -> list[Row]:
        return [row for row in self.read_lines() if row is not None]

    def read_lines(self) -> list[Row | None]:
        """Return the new lines, None for each damaged one."""
        try:
            file = open_regular(self._path)
        except FileNotFoundError:
            return []
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._offset = found.st_ino, 0
            file.seek(self._offset)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [parse_row(line) for line in whole.split(b"\n")[:-1]]
