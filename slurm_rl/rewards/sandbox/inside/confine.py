"""Give up files, system calls, capabilities and resources, step by step and for good."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
import sys
from typing import Any

from slurm_rl.rewards.sandbox.inside.seccomp import LIBC, checked, install_filter

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


def confine_files(version: int) -> None:
    """Allow opening only `readable_paths` and `DEVICES`, by this version of Landlock.

    Also cuts TCP (version 4) and signals and abstract sockets to the outside (version 6).
    """
    handled = (1 << _NUM_FILE_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("Q", handled)
    if version >= _TCP_SINCE:
        attributes += struct.pack("Q", 3)
    if version >= _SCOPES_SINCE:
        attributes += struct.pack("Q", 3)
    rules = checked(LIBC.syscall(_CREATE, attributes, len(attributes), 0), "Landlock")
    for path in readable_paths():
        _allow(rules, path, _READ_FILE | _READ_DIR | _EXECUTE)
    for path in DEVICES:
        _allow(rules, path, _READ_FILE | _WRITE_FILE)
    checked(LIBC.syscall(_RESTRICT, rules, 0), "Landlock")
    os.close(rules)


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
    version = landlock_version() if limits["landlock"] else 0
    if version:
        confine_files(version)
    else:
        enter_own_root()
    _set_limits(limits)
    _drop_capabilities()
    install_filter()
    files = f"Landlock {version}" if version else "namespaces"
    return {"files": files, "network": "seccomp", "processes": "seccomp"}


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


_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_KEPT = {1: _RDONLY, 2: _NOSUID, 4: _NODEV, 8: _NOEXEC, 1024: 1 << 10, 2048: 1 << 11, 4096: 1 << 21}
"""Flags of statvfs that a mount of another namespace must keep, to those of mount(2); the last are about atime."""


def enter_own_root() -> None:
    """Enter a new root that holds only `readable_paths` and `DEVICES`; raise OSError where not allowed."""
    home, uid, gid = os.getcwd(), os.geteuid(), os.getegid()  # noqa: PTH109  pathlib is not imported in the sandbox
    checked(LIBC.unshare(_NEWUSER | _NEWNS | _NEWNET | _NEWIPC), "user namespaces are not allowed here")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
    _mount(None, "/", _REC | _PRIVATE)
    # Not over the home, which is one of the folders to show.
    root = home + ".root"
    os.mkdir(root)  # noqa: PTH102
    _mount("tmpfs", root, _NOSUID | _NODEV, kind=b"tmpfs")
    for path in sorted({os.path.abspath(path) for path in (*readable_paths(), *DEVICES)}):  # noqa: PTH100
        _show(path, root)
    os.chdir(root)
    # Pivot in place: the old root is then mounted on top and can be detached without a folder for it.
    checked(LIBC.syscall(_pivot_number(), b".", b"."), "pivot_root failed")
    checked(LIBC.umount2(b".", _DETACH), "the old root could not be left")
    os.chdir("/")
    _mount(None, "/", _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir(home)


def _show(path: str, root: str) -> None:
    """Bind `path` into the new root, read-only but for devices; it need not exist."""
    target = root + path
    if not os.path.lexists(path) or os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    if os.path.islink(path):  # noqa: PTH114
        os.symlink(os.readlink(path), target)  # noqa: PTH115, PTH211
        return
    if os.path.isdir(path):  # noqa: PTH112
        os.mkdir(target)  # noqa: PTH102
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    _mount(path, target, _BIND | _REC)
    if path.startswith("/dev/"):
        return
    flags = os.statvfs(path).f_flag
    kept = sum(theirs for ours, theirs in _KEPT.items() if flags & ours)
    _mount(None, target, _BIND | _REMOUNT | _RDONLY | kept)


def _mount(source: str | None, target: str, flags: int, kind: bytes | None = None) -> None:
    done = LIBC.mount(source.encode() if source else None, target.encode(), kind, ctypes.c_ulong(flags), None)
    checked(done, f"mount on {target} failed")


def _pivot_number() -> int:
    return 155 if os.uname().machine == "x86_64" else 41
