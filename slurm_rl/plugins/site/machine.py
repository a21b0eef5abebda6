"""Inspect Slurm and the login node. Every command has a deadline; only sinfo must answer."""

import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.command_line import run_slurm
from slurm_rl.launch.slurm.partitions import parse_settings
from slurm_rl.launch.slurm.shared_paths import find_kind, read_mounts
from slurm_rl.plugins.site.slurm_facts import SINFO_FORMAT, Partition, parse_sinfo

_RUNTIMES = ("podman", "docker", "apptainer")
_NETWORK = re.compile(
    r"(nfs4?|lustre|gpfs|mmfs|beegfs|wekafs|ceph|panfs|orangefs|pvfs2|afs|cifs|smb3|glusterfs|quobyte|dvs|virtiofs|9p"
    r"|vastnfs|daos|yrfs|cvfs|gfs2)$|fuse\.(ceph|glusterfs|juicefs|dfuse|quobyte|curvefs|alluxio|mfs|dvs|lustre)"
)
"""Types of network file systems."""
# By preference: sites provide the first ones for large files of jobs.
_FOLDER_VARIABLES = ("SCRATCH", "PSCRATCH", "WORK", "WORKDIR", "PROJECT", "DATA", "HOME")


@dataclass(frozen=True)
class Folder:
    """A place for run directories."""

    path: str
    word: str
    """Path in a preset, by its variable so that other users can share the preset; "" for the working directory."""
    kind: str
    """Type of its file system."""
    is_shared: bool
    """Whether it is a network file system."""


@dataclass(frozen=True)
class Findings:
    """Facts from one inspection, without assumptions."""

    host: str
    cluster: str
    """ClusterName of slurm.conf; "" if scontrol does not answer."""
    partitions: tuple[Partition, ...]
    """The default partition first."""
    runtimes: tuple[str, ...]
    """Container runtimes, pyxis first."""
    folders: tuple[Folder, ...]
    """Candidates for the run root, best first."""

    def partition(self, name: str) -> Partition:
        return next(partition for partition in self.partitions if partition.name == name)


def inspect_site(run: Callable[[Sequence[str]], str] = run_slurm) -> Findings:
    """Return all facts that are visible from this machine.

    Raises:
        SlurmRLError: sinfo is missing or does not answer; without partitions there is no preset.
    """
    partitions = parse_sinfo(run(["sinfo", "-h", "-e", "-o", SINFO_FORMAT]))

    def query(*argv: str) -> str:
        try:
            return run(argv)
        except SlurmRLError:
            return ""

    mounts = read_mounts(Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines())
    places = {name: os.environ[name] for name in _FOLDER_VARIABLES if os.access(os.environ.get(name, ""), os.W_OK)}
    return Findings(
        host=socket.gethostname(),
        cluster=parse_settings(query("scontrol", "show", "config")).get("ClusterName", ""),
        partitions=tuple(partitions),
        runtimes=(
            *(["pyxis"] if "--container-image" in query("srun", "--help") else []),
            *(name for name in _RUNTIMES if shutil.which(name)),
        ),
        folders=tuple(list_folders(places, str(Path.cwd()), mounts)),
    )


def list_folders(environ: Mapping[str, str], cwd: str, mounts: Sequence[tuple[str, str]]) -> list[Folder]:
    """Return the folders of `environ` in its order, then the working directory; network file systems come first."""
    words: dict[str, str] = {}
    for name, path in environ.items():
        if path.startswith("/") and path != "/" and path.isprintable():
            words.setdefault(path, f"${{oc.env:{name}}}")
    words.setdefault(cwd, "")
    kinds = {path: find_kind(path, mounts) for path in words}
    found = [Folder(path, word, kinds[path], bool(_NETWORK.match(kinds[path]))) for path, word in words.items()]
    return sorted(found, key=lambda one: not one.is_shared)
