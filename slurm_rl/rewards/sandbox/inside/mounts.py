"""Confine files in a kernel without Landlock: a root folder of its own, in a user namespace.

A file system in memory becomes the root, with only read-only views of the readable paths and no network interface.
See user_namespaces(7), pivot_root(2).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from slurm_rl.rewards.sandbox.inside.libc import LIBC, checked

_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_KEPT = {1: _RDONLY, 2: _NOSUID, 4: _NODEV, 8: _NOEXEC, 1024: 1 << 10, 2048: 1 << 11, 4096: 1 << 21}
"""Flags of statvfs that a mount of another namespace must keep, to those of mount(2); the last are about atime."""


def enter_own_root(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Enter a new root that holds only `readable` and the devices `writable`; raise OSError where not allowed."""
    home, uid, gid = os.getcwd(), os.geteuid(), os.getegid()  # noqa: PTH109  pathlib is not imported in the sandbox
    checked(LIBC.unshare(_NEWUSER | _NEWNS | _NEWNET | _NEWIPC), "user namespaces are not allowed here")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
    _mount(None, "/", _REC | _PRIVATE)
    # Beside the home, not over it: the home itself is one of the folders to show.
    root = home + ".root"
    os.mkdir(root)  # noqa: PTH102
    _mount("tmpfs", root, _NOSUID | _NODEV, kind=b"tmpfs")
    for path in sorted({os.path.abspath(path) for path in (*readable, *writable)}):  # noqa: PTH100
        _show(path, root)
    os.chdir(root)
    # Of itself onto itself: the old root lands on top and can be let go without a folder for it.
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
