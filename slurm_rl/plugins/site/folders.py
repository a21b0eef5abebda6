"""Folders of a login node: which of them other nodes see, by the type of their file system. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.launch.slurm.shared_paths import explain_local, find_kind

_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "wekafs", "ceph", "panfs", "orangefs", "pvfs2", "afs"),
        *("cifs", "smb3", "glusterfs", "quobyte", "dvs", "virtiofs", "9p", "vastnfs", "daos", "yrfs", "cvfs", "gfs2"),
    )
)
_NETWORK_BY_FUSE = ("ceph", "glusterfs", "juicefs", "dfuse", "quobyte", "curvefs", "alluxio", "mfs", "dvs", "lustre")
# In the order in which a run's files should go there: sites give them to large files that jobs write.
VARIABLES = ("SCRATCH", "PSCRATCH", "WORK", "WORKDIR", "PROJECT", "DATA", "HOME")


@dataclass(frozen=True)
class Folder:
    """A place for run directories."""

    path: str
    word: str
    """As a preset names it: with the variable that it came from, so that the preset is of use to others."""
    kind: str
    """Of its file system."""
    is_shared: bool
    """Whether its file system is one of a network."""
    local: str | None
    """Why other nodes hardly see it; None where nothing says so."""


def judge_folder(path: str, word: str, mounts: Sequence[tuple[str, str]]) -> Folder:
    """The folder by the file system that it lies on.

    >>> judge_folder("/home/me", "${oc.env:HOME}", [("/", "ext4"), ("/home", "nfs4")]).is_shared
    True
    """
    kind = find_kind(path, mounts)
    is_shared = kind in _NETWORK or (kind.startswith("fuse.") and kind[5:].startswith(_NETWORK_BY_FUSE))
    return Folder(path, word, kind, is_shared, explain_local(path, mounts))


def list_folders(environ: Mapping[str, str], cwd: str, mounts: Sequence[tuple[str, str]]) -> list[Folder]:
    """Where runs may go, those that all nodes see first; then by `VARIABLES`; the working directory last."""
    named = {environ[name]: f"${{oc.env:{name}}}" for name in reversed(VARIABLES) if _is_usable(environ.get(name, ""))}
    order = [path for name in VARIABLES if (path := environ.get(name, "")) in named]
    found = [judge_folder(path, named[path], mounts) for path in dict.fromkeys(order)]
    return sorted([*found, judge_folder(cwd, "", mounts)], key=lambda folder: not folder.is_shared)


def _is_usable(path: str) -> bool:
    return path.startswith("/") and path != "/" and path.isprintable()
