"""Warn of files of a job that other nodes probably do not see."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from slurm_rl.plan.job import JobPlan

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_OWN_DISK = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay"})
_OWN_FOLDERS = ("/tmp", "/var/tmp", "/run", "/dev/shm")


def warn_of_local_paths(plan: JobPlan) -> list[str]:
    """Return a warning for each file that every node needs and that is probably only on this machine."""
    wanted = {"the interpreter": plan.host_python, "the run directory": plan.run_dir}
    if plan.container["image"] is None and plan.python != plan.host_python:
        wanted["cluster.python"] = plan.python
    mounts = read_mounts(Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines())
    found = {path: (name, why) for name, path in wanted.items() if (why := explain_local(path, mounts))}
    return [
        f"warning: {path} ({name}) is {why}, so it may not be there on the nodes. "
        "Next: use a file system that all nodes share"
        for path, (name, why) in found.items()
    ]


def read_mounts(lines: Iterable[str]) -> list[tuple[str, str]]:
    r"""Return mount point and type of each line of /proc/mounts, which has octal escapes.

    >>> read_mounts([r"tmpfs /a\040b tmpfs rw 0 0"])
    [('/a b', 'tmpfs')]
    """
    fields = (line.split(" ") for line in lines)
    return [(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), row[1]), row[2]) for row in fields if len(row) > 2]


def explain_local(path: str, mounts: Sequence[tuple[str, str]]) -> str | None:
    """Return why other nodes probably do not see this absolute path; None without a reason.

    >>> mounts = [("/", "ext4"), ("/home", "nfs4"), ("/scratch", "tmpfs")]
    >>> explain_local("/tmp/venv/bin/python", mounts), explain_local("/home/me/venv/bin/python", mounts)
    ('below /tmp on a disk of this machine (ext4)', None)
    >>> explain_local("/scratch/python", mounts), explain_local("/opt/python", mounts)
    ('in the memory of this machine (tmpfs)', None)
    """
    kind = find_kind(path, mounts)
    if kind in _IN_MEMORY:
        return f"in the memory of this machine ({kind})"
    folder = next((folder for folder in _OWN_FOLDERS if PurePosixPath(path).is_relative_to(folder)), None)
    if folder is not None and kind in _OWN_DISK:
        return f"below {folder} on a disk of this machine ({kind})"
    return None


def find_kind(path: str, mounts: Sequence[tuple[str, str]]) -> str:
    """Return the type of the file system of this absolute path; "" without a mount above it."""
    above = [(point, kind) for point, kind in mounts if PurePosixPath(path).is_relative_to(point)]
    # The later one of two mounts on one point is visible.
    return max(enumerate(above), key=lambda item: (len(item[1][0]), item[0]), default=(0, ("", "")))[1][1]
