"""Give up files, system calls, capabilities and resources, step by step and for good."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Iterable
from typing import Any

from slurm_rl.rewards.sandbox.inside.libc import LIBC, checked
from slurm_rl.rewards.sandbox.inside.mounts import enter_own_root
from slurm_rl.rewards.sandbox.inside.seccomp import install_filter

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
"""The same numbers on every machine."""
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_NUM_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Rights on files that each version of the interface knows; 16 from version 5 on."""
_TCP_SINCE, _SCOPES_SINCE = 4, 6


def landlock_version() -> int:
    """Version of the kernel's Landlock; 0 when it has none or has it switched off."""
    return max(0, int(LIBC.syscall(_CREATE, None, 0, _VERSION_FLAG)))


def confine_files(readable: Iterable[str], writable: Iterable[str] = ()) -> int:
    """Allow opening only paths at or below `readable`, and the files `writable`; return Landlock's version.

    Also cuts TCP (version 4) and signals and abstract sockets to the outside (version 6).
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
    rules = checked(LIBC.syscall(_CREATE, attributes, len(attributes), 0), "Landlock")
    for path in readable:
        _allow(rules, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for path in writable:
        _allow(rules, path, _READ_FILE | _WRITE_FILE)
    checked(LIBC.syscall(_RESTRICT, rules, 0), "Landlock")
    os.close(rules)
    return version


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        rights &= ~_READ_DIR
    checked(LIBC.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0), "Landlock")
    os.close(fd)


_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION = 0x20080522
_OPEN_FILES = 64
DEVICES = ("/dev/null",)


def confine(limits: dict[str, Any], parent: int) -> dict[str, str]:
    """Confine this process and return the kernel feature by resource; raise OSError if a step fails.

    Args:
        limits: `cpu_s`, `memory_bytes`, `file_bytes`, and `landlock`, False to do without it.
        parent: pid of the process with which this one dies.
    """
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    _prctl(_NO_NEW_PRIVS, 1)
    files = _confine_files(landlock=limits["landlock"] and landlock_version() > 0)
    _set_limits(limits)
    _drop_capabilities()
    install_filter()
    return {"files": files, "network": "seccomp", "processes": "seccomp"}


def _confine_files(*, landlock: bool) -> str:
    """Confine by Landlock, else by a root of its own; return the method."""
    if landlock:
        return f"Landlock {confine_files(readable_paths(), DEVICES)}"
    enter_own_root(readable_paths(), DEVICES)
    return "namespaces"


def readable_paths() -> list[str]:
    """The standard library, shared libraries, time zones, devices that hold nothing, and the empty home."""
    return [
        ".",
        os.path.dirname(os.__file__),  # noqa: PTH120  pathlib is not imported in the sandbox
        os.path.join(sys.base_prefix, "lib"),  # noqa: PTH118
        *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/localtime", "/etc/ld.so.cache"),
        *("/dev/zero", "/dev/random", "/dev/urandom"),
        *_library_folders(os.environ.get("LD_LIBRARY_PATH", "")),
    ]


def _library_folders(path: str) -> list[str]:
    """Those called lib or lib64: such a list may also name a home, or by an empty entry the working directory."""
    return [folder for folder in path.split(":") if folder.startswith("/") and folder.endswith(("/lib", "/lib64"))]


def _set_limits(limits: dict[str, Any]) -> None:
    for kind, value in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (lowest, lowest))
    # Deep recursion through C (functools.lru_cache) overflows the usual 8 MB; memory is bounded by RLIMIT_AS.
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def _drop_capabilities() -> None:
    """Drop capabilities: in a container the trainer may be root."""
    checked(LIBC.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)), "capabilities could not be dropped")


def _prctl(option: int, value: int) -> None:
    checked(LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option} failed")
