"""Private folders in a place where every user may write. Standard library only.

A name in /tmp can be predicted, and another user may have created it first, as a folder or a link. So the folder is
created by mkdir, which fails if the name exists, and an existing one is used only if this user owns it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from pathlib import Path

from slurm_rl.errors import BringUpError
from slurm_rl.run_dir.io_errors import annotate_path


def make_private_folder(path: Path) -> None:
    """Create `path` for this user only, or use the existing one.

    Raises:
        BringUpError: another user created it first, or could replace it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parent = path.parent.stat()
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise BringUpError(
            "cluster.tmp_root must not let every user rename what is in it",
            seen=f"{path.parent} with mode {stat.S_IMODE(parent.st_mode):o}",
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
                action="ask that user to remove it, or set cluster.tmp_root to another node-local folder",
            )
        if not stat.S_IMODE(found.st_mode) & 0o077:
            return
        shutil.rmtree(path)  # ours, but other users could put files into it
    raise BringUpError("a node's temp folder must keep its mode", seen=f"{path} has other rights again")


def is_our_folder(path: Path) -> bool:
    """Return whether it is a folder of this user, and not a link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def copy_own_files(source: Path, target: Path, most_bytes: int) -> None:
    """Copy the non-empty regular files of up to `most_bytes` in a private folder, with their modes but no group writes.

    Links are not followed.
    """
    for file in source.iterdir() if is_our_folder(source) else ():
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not 0 < found.st_size <= most_bytes:
            continue
        copied = target / file.name
        with annotate_path(copied):
            target.mkdir(parents=True, exist_ok=True)
            mode = found.st_mode & 0o644
            with os.fdopen(os.open(copied, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as out:
                out.write(file.read_bytes()[:most_bytes])


def name_of_user(uid: int) -> str:
    """Return the user's name, or `user <uid>`."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
