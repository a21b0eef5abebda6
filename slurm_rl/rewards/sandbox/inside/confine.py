"""Gives up, step by step and for good, what confined code must not have."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from typing import Any

from slurm_rl.rewards.sandbox.inside.landlock import confine_files, landlock_version
from slurm_rl.rewards.sandbox.inside.mounts import enter_own_root
from slurm_rl.rewards.sandbox.inside.seccomp import install_filter

_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION = 0x20080522
_OPEN_FILES = 64
DEVICES = ("/dev/null",)
"""What may be written, beside the pipes."""


def confine(limits: dict[str, Any], parent: int) -> dict[str, str]:
    """Confine this process.

    Args:
        limits: `cpu_s`, `memory_bytes`, `file_bytes` (of one file; nothing is writable but the output);
            `landlock` false to do without it.
        parent: pid of the process that started this one, with which it dies.

    Returns:
        What holds each thing back, in words. Raises OSError when something could not be given up.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    _prctl(libc, _NO_NEW_PRIVS, 1)
    files = _confine_files(landlock=limits["landlock"] and landlock_version() > 0)
    _set_limits(limits)
    _drop_capabilities(libc)
    install_filter()
    return {"files": files, "network": "seccomp", "processes": "seccomp"}


def _confine_files(*, landlock: bool) -> str:
    """By Landlock, or else by a root of its own; returns which."""
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


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """In a container the trainer may be root, who could raise limits again and read anybody's files."""
    if libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")
