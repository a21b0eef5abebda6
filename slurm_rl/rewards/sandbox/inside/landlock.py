"""Which files confined code may open: Landlock, Linux 5.13 and later, no privilege needed.

What is not named cannot be opened, listed, executed, created, renamed or removed, whoever owns it. Metadata
(that a path exists, its size) stays visible. See Linux' Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
"""The same numbers on every machine."""
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_NUM_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Rights on files that each version of the interface knows; 16 from version 5 on."""
_TCP_SINCE, _SCOPES_SINCE = 4, 6


def landlock_version() -> int:
    """Version of the kernel's Landlock; 0 when it has none or has it switched off."""
    return max(0, int(_libc().syscall(_CREATE, None, 0, _VERSION_FLAG)))


def confine_files(readable: Iterable[str], writable: Iterable[str] = ()) -> int:
    """From here on open only what is at or below `readable`, and the files `writable`; some may not exist.

    Also cuts TCP (version 4) and signals and abstract sockets to the outside (version 6).

    Returns:
        The version of Landlock. Raises OSError when there is none.
    """
    version = landlock_version()
    if version == 0:
        raise OSError("the kernel has no Landlock")
    handled = (1 << _NUM_FILE_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("Q", handled)
    if version >= _TCP_SINCE:
        attributes += struct.pack("Q", 3)
    if version >= _SCOPES_SINCE:
        attributes += struct.pack("Q", 3)
    libc = _libc()
    rules = _checked(libc.syscall(_CREATE, attributes, len(attributes), 0))
    for path in readable:
        _allow(libc, rules, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for path in writable:
        _allow(libc, rules, path, _READ_FILE | _WRITE_FILE)
    _checked(libc.syscall(_RESTRICT, rules, 0))
    os.close(rules)
    return version


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= ~_READ_DIR
    _checked(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0))
    os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
