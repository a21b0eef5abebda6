"""Folders in a place where everybody may write, that are this user's alone. Standard library only.

A name in /tmp can be foreseen, and a stranger may have made it first: a folder of his own, in which he reads and
replaces what we put there, or a link to somewhere else. So a folder is made by mkdir, which fails where there is
anything, and what is there already is looked at without following links.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from pathlib import Path

from slurm_rl.errors import BringUpError
from slurm_rl.run_dir.disk import naming

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Not held up by a pipe, which is no regular file.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def make_private_folder(path: Path) -> None:
    """Make `path` as a folder that this user alone may enter, or take the one that is.

    Raises:
        BringUpError: somebody else made it first, or may put another in its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    around = path.parent.stat()
    if around.st_mode & stat.S_IWOTH and not around.st_mode & stat.S_ISVTX:
        raise BringUpError(
            "cluster.tmp_root must not let everybody rename what lies in it",
            seen=f"{path.parent} with mode {stat.S_IMODE(around.st_mode):o}",
            action="have its sticky bit set (chmod +t), or set cluster.tmp_root to another node-local folder",
        )
    for _ in range(2):
        try:
            path.mkdir(mode=0o700)
            return
        except FileExistsError:
            found = path.lstat()
        if not (stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()):
            kind = "a link" if stat.S_ISLNK(found.st_mode) else "a folder" if stat.S_ISDIR(found.st_mode) else "a file"
            raise BringUpError(
                "a node's temp folder must be this user's own",
                seen=f"{path} is {kind} of {name_of_user(found.st_uid)}",
                where=os.uname().nodename,
                action="ask him to remove it, or set cluster.tmp_root to another node-local folder",
            )
        if not stat.S_IMODE(found.st_mode) & 0o077:
            return
        shutil.rmtree(path)  # ours, but others could put things into it
    raise BringUpError(
        "a node's temp folder must stay what it was made as", seen=f"{path} comes back with other rights"
    )


def is_our_folder(path: Path) -> bool:
    """Whether it is a folder of this user, and no link to one."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def copy_own_files(source: Path, target: Path, most_bytes: int) -> None:
    """Copy the regular files of this user that lie in the folder `source` and hold at most so much.

    Nothing is followed that is a link; a copy may be read by nobody who may not read the file.
    """
    try:
        folder = os.open(source, _OPEN_FOLDER)
    except OSError:
        return
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - by its descriptor: the name may be another's by now
            if (found := _read_own_file(folder, name, most_bytes)) is not None:
                _copy(found[0], target / name, found[1])
    finally:
        os.close(folder)


def _read_own_file(folder: int, name: str, most_bytes: int) -> tuple[bytes, int] | None:
    """Content and mode; None of what is not to be copied."""
    try:
        fd = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError:
        return None
    try:
        # Before a file is made of it, which fails of a folder: Ray has some among its logs.
        found = os.fstat(fd)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
        if not (is_own and 0 < found.st_size <= most_bytes):
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(most_bytes), found.st_mode & 0o644
    finally:
        os.close(fd)


def _copy(content: bytes, target: Path, mode: int) -> None:
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as file:
            file.write(content)


def name_of_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
