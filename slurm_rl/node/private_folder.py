"""Private folders in a place where every user may write. Standard library only.

A name in /tmp can be predicted, and another user may have created it first, as a folder or a link. So the folder is
created by mkdir, which fails if the name exists, and an existing one is used only if this user owns it.

The folder of an attempt is `srl-<run>-<attempt>-<secret>` in cluster.tmp_root. Ray needs the same path on all nodes, so
there the secret derives from the attempt's token; else each node draws its own.
"""

import base64
import hashlib
import os
import pwd
import secrets
import shutil
import stat
import time
from pathlib import Path

from slurm_rl.errors import BringUpError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.io_errors import annotate_path
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.run_secret import token_file

# <tmp>/r/session_2026-11-21_10-15-00_123456_1234567/sockets/plasma_store must fit into 107 bytes.
_MAX_LENGTH = 107 - len("/r/session_2026-11-21_10-15-00_123456_12345678/sockets/plasma_store")
_REMOVE_DEADLINE_S = 5.0
_REMOVE_POLL_S = 0.02


def make_private_folder(path: Path) -> None:
    """Create `path` for this user only, or reuse it. Raises BringUpError if it is another user's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parent = path.parent.stat()
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        raise BringUpError(
            "cluster.tmp_root must not let every user rename its contents",
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
    raise BringUpError("a node's temp folder must keep its mode", seen=f"{path} changed its permissions again")


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


def choose_tmp_dir(run: RunDir, plan: JobPlan, attempt: int) -> Path:
    """Return the folder of this node. Raises BringUpError if its path is too long for Ray's sockets."""
    token = token_file(run, attempt)
    secret = token.read_bytes() if token.is_file() else secrets.token_bytes(16)
    path = Path(plan.tmp_root) / f"{tmp_stem(plan)}{attempt}-{_letters(b'folder' + secret, 7)}"
    if len(str(path)) > _MAX_LENGTH:
        raise BringUpError(
            f"cluster.tmp_root must leave room for Ray's sockets: at most {_MAX_LENGTH} characters with the run's tag",
            seen=f"{path} ({len(str(path))} characters)",
            action="set cluster.tmp_root=/tmp or another short node-local folder",
        )
    return path


def tmp_stem(plan: JobPlan) -> str:
    """Return the common prefix of the names of the run's folders."""
    return f"srl-{_letters(plan.run_dir.encode(), 6)}-"


def remove_tmp_dirs(plan: JobPlan, attempt: int | None = None, *, before: int | None = None) -> None:
    """Remove the run's folders on this machine: all, of one attempt, or of attempts `before` one."""
    for path in Path(plan.tmp_root).glob(f"{tmp_stem(plan)}*"):
        number = path.name.removeprefix(tmp_stem(plan)).partition("-")[0]
        if number.isdigit() and attempt in (None, int(number)) and (before is None or int(number) < before):
            remove_tmp_dir(path)


def remove_tmp_dir(path: Path) -> None:
    """Remove a folder right after its processes were ended.

    A thread of a killed process may finish a write after its process can no longer be found by its mark, and a new file
    keeps the folder, so the removal is repeated.
    """
    if not is_our_folder(path):
        return
    deadline = time.monotonic() + _REMOVE_DEADLINE_S
    shutil.rmtree(path, ignore_errors=True)
    while path.exists() and time.monotonic() < deadline:
        time.sleep(_REMOVE_POLL_S)
        shutil.rmtree(path, ignore_errors=True)


def _letters(text: bytes, number: int) -> str:
    """Return a hash in base 32."""
    return base64.b32encode(hashlib.sha256(text).digest()).decode()[:number].lower()
