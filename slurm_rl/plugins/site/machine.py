"""Inspect Slurm and the login node. Every command has a deadline; one that fails does not affect the others."""

from __future__ import annotations

import getpass
import grp
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError, run_slurm
from slurm_rl.launch.slurm.partitions import parse_settings
from slurm_rl.launch.slurm.shared_paths import explain_local, find_kind, read_mounts
from slurm_rl.node.environment import find_accelerator
from slurm_rl.plugins.site.slurm_facts import (
    SACCTMGR_FORMAT,
    SINFO_FORMAT,
    Association,
    Partition,
    parse_associations,
    parse_records,
    parse_sinfo,
)

RunCommand = Callable[[Sequence[str]], str]
"""Runs a command of Slurm and returns its output; raises SlurmRLError."""
_RUNTIMES = ("enroot", "apptainer", "singularity", "podman", "docker")
_PYXIS_OPTION = "--container-image"
_FOLDER_S = 10.0
_VIRTUAL = re.compile(
    r"lo|docker.*|podman.*|cni.*|veth.*|virbr.*|br-.*|tap.*|tun.*|dummy.*|bonding_masters|sit\d.*|ip6.*"
)
_NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "wekafs", "ceph", "panfs", "orangefs", "pvfs2", "afs"),
        *("cifs", "smb3", "glusterfs", "quobyte", "dvs", "virtiofs", "9p", "vastnfs", "daos", "yrfs", "cvfs", "gfs2"),
    )
)
_NETWORK_BY_FUSE = ("ceph", "glusterfs", "juicefs", "dfuse", "quobyte", "curvefs", "alluxio", "mfs", "dvs", "lustre")
# By preference: sites provide the first ones for large files of jobs.
_FOLDER_VARIABLES = ("SCRATCH", "PSCRATCH", "WORK", "WORKDIR", "PROJECT", "DATA", "HOME")


@dataclass(frozen=True)
class Folder:
    """A place for run directories, or the Python interpreter."""

    path: str
    word: str
    """Path in a preset, by its variable so that other users can share the preset; "" for the working directory."""
    kind: str
    """Type of its file system."""
    is_shared: bool
    """Whether it is a network file system."""
    local: str | None
    """Why other nodes probably do not see it."""


@dataclass(frozen=True)
class Findings:
    """Facts from one inspection, without questions and assumptions."""

    host: str
    version: str
    """Output of `sinfo --version`."""
    partitions: tuple[Partition, ...]
    """The default partition first."""
    python: Folder
    """Interpreter of the command."""
    groups: tuple[str, ...] = ()
    """Unix groups of the user."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """slurm.conf as slurmctld has it."""
    associations: tuple[Association, ...] = ()
    runtimes: Mapping[str, str] = field(default_factory=dict)
    """Container runtime -> where it was found."""
    folders: tuple[Folder, ...] = ()
    """Candidates for the run root, best first."""
    devices: tuple[str, ...] = ()
    """RDMA adapters, then network interfaces that are up."""
    own_gpus: tuple[str, int] = ("cpu", 0)
    """Accelerator and number of GPUs of this machine."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that choose for sbatch, such as SBATCH_ACCOUNT."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Failed query -> reason."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Partition -> why `sbatch --test-only` takes no job there."""

    def partition(self, name: str) -> Partition:
        return next(partition for partition in self.partitions if partition.name == name)


def inspect_site(run: RunCommand = run_slurm) -> Findings:
    """Return all facts that are visible from this machine.

    Raises:
        SlurmRLError: sinfo is missing or does not answer; without partitions there is no preset.
    """
    version = run(["sinfo", "--version"]).strip()
    partitions = parse_sinfo(run(["sinfo", "-h", "-e", "-o", SINFO_FORMAT]))
    failed: dict[str, str] = {}

    def query(name: str, *args: str) -> str:
        try:
            return run([*name.split(), *args])
        except SlurmUnavailableError as error:
            failed[name] = _shorten(error)
            if name.startswith("scontrol"):  # a second query would wait for its own deadline
                failed.setdefault("scontrol show config", "skipped, since scontrol got no answer")
        except SlurmRLError as error:
            failed[name] = _shorten(error)
        return ""

    rules = {row.get("PartitionName"): row for row in parse_records(query("scontrol show partition", "-o"))}
    for partition in partitions:
        partition.rules = rules.get(partition.name, {})
    settings = "" if "scontrol show config" in failed else query("scontrol show config")
    own = (f"name={getpass.getuser()}", "withassoc", f"format={SACCTMGR_FORMAT}", "-n", "-P")
    associations = parse_associations(query("sacctmgr show user", *own))
    mounts = read_mounts(_read("/proc/mounts").splitlines())
    places = {name: os.environ[name] for name in _FOLDER_VARIABLES if _is_writable(os.environ.get(name, ""))}
    return Findings(
        host=socket.gethostname(),
        version=version,
        partitions=tuple(partitions),
        groups=_groups(),
        settings=parse_settings(settings),
        associations=tuple(associations),
        runtimes=find_runtimes(query("srun --help")),
        folders=tuple(list_folders(places, str(Path.cwd()), mounts)),
        python=judge_folder(sys.executable, "", mounts),
        devices=tuple(list_devices()),
        own_gpus=find_accelerator(),
        environ={name: value for name, value in os.environ.items() if name.startswith("SBATCH_")},
        failed=failed,
    )


def find_runtimes(srun_help: str) -> dict[str, str]:
    """Return the container runtimes of this machine and pyxis, with where each was found."""
    found = {"pyxis": f"srun --help has {_PYXIS_OPTION}"} if _PYXIS_OPTION in srun_help else {}
    return found | {name: path for name in _RUNTIMES if (path := shutil.which(name))}


def judge_folder(path: str, word: str, mounts: Sequence[tuple[str, str]]) -> Folder:
    """Return the folder with its file system.

    >>> judge_folder("/home/me", "${oc.env:HOME}", [("/", "ext4"), ("/home", "nfs4")]).is_shared
    True
    """
    kind = find_kind(path, mounts)
    is_shared = kind in _NETWORK_FILE_SYSTEMS or kind.startswith(tuple(f"fuse.{name}" for name in _NETWORK_BY_FUSE))
    return Folder(path, word, kind, is_shared, explain_local(path, mounts))


def list_folders(environ: Mapping[str, str], cwd: str, mounts: Sequence[tuple[str, str]]) -> list[Folder]:
    """Return the folders of `environ` in its order, then the working directory; network file systems come first."""
    words: dict[str, str] = {}
    for name, path in environ.items():
        if path.startswith("/") and path != "/" and path.isprintable():
            words.setdefault(path, f"${{oc.env:{name}}}")
    words.setdefault(cwd, "")
    return sorted((judge_folder(path, word, mounts) for path, word in words.items()), key=lambda one: not one.is_shared)


def list_devices(root: Path = Path("/sys/class")) -> list[str]:
    """Return RDMA adapters and interfaces that are up, without virtual ones; a driver may report `unknown` for up."""
    adapters = sorted(path.name for path in root.glob("infiniband/*"))
    interfaces = sorted(
        path.name
        for path in root.glob("net/*")
        if not _VIRTUAL.fullmatch(path.name) and _read(path / "operstate").strip() != "down"
    )
    return [*adapters, *interfaces]


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _is_writable(path: str) -> bool:
    """Test in a subprocess: a file system whose server is down never answers."""
    process = subprocess.Popen(["test", "-d", path, "-a", "-w", path], stderr=subprocess.DEVNULL)
    try:
        return process.wait(_FOLDER_S) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        return False


def _groups() -> tuple[str, ...]:
    found = []
    for number in os.getgroups():
        try:
            found.append(grp.getgrgid(number).gr_name)
        except KeyError:  # known to a directory service only, which is down
            continue
    return tuple(found)


def _shorten(error: SlurmRLError) -> str:
    return " ".join((error.seen if isinstance(error.seen, str) else error.rule).split())[:160]
