"""Looks at Slurm and at this machine. Every command has a deadline, and what fails costs its own answer alone."""

from __future__ import annotations

import getpass
import grp
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError, run_slurm
from slurm_rl.launch.slurm.commands import parse_settings
from slurm_rl.launch.slurm.shared_paths import read_mounts
from slurm_rl.node.environment import find_accelerator
from slurm_rl.plugins.site.accounts import SACCTMGR_FORMAT, parse_associations
from slurm_rl.plugins.site.fabric import Fabric, read_fabric
from slurm_rl.plugins.site.findings import Findings
from slurm_rl.plugins.site.folders import VARIABLES, judge_folder, list_folders
from slurm_rl.plugins.site.partitions import SINFO_FORMAT, parse_records, parse_sinfo, with_rules

Ask = Callable[[Sequence[str]], str]
"""Runs a command of Slurm's; its output. Raises a SlurmRLError."""

_CHOOSING = ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION")
_RUNTIMES = ("enroot", "apptainer", "singularity", "podman", "docker")
_FOLDER_S = 10.0
_PLUGIN_OPTION = "--container-image"
"""What pyxis adds to srun."""


class Probes:
    """Asks one thing after the other, and remembers what failed."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.failed: dict[str, str] = {}
        self._silent = ""

    def ask(self, what: str, argv: Sequence[str], *, by_controller: bool = True) -> str:
        """The output; "" when there is none, with the reason in `failed`."""
        if by_controller and self._silent:
            # Each of them would wait for its own deadline.
            self.failed[what] = f"not asked, since {self._silent} got no answer"
            return ""
        try:
            return self._ask(argv)
        except SlurmUnavailableError as error:
            self._silent = argv[0] if by_controller else ""
            self.failed[what] = _shorten(error)
        except SlurmRLError as error:
            self.failed[what] = _shorten(error)
        return ""


def look(ask: Ask = run_slurm) -> Findings:
    """All that is to be seen from here.

    Raises:
        SlurmRLError: sinfo is not here, or does not answer; without partitions there is nothing to write down.
    """
    version = ask(["sinfo", "--version"]).strip()
    partitions = parse_sinfo(ask(["sinfo", "-h", "-e", "-o", SINFO_FORMAT]))
    probes = Probes(ask)
    rules = parse_records(probes.ask("scontrol show partition", ["scontrol", "show", "partition", "-o"]))
    settings = parse_settings(probes.ask("scontrol show config", ["scontrol", "show", "config"]))
    user = getpass.getuser()
    # slurmdbd answers here, another daemon than the controller.
    asked = ["sacctmgr", "-n", "-P", "show", "user", f"name={user}", "withassoc", f"format={SACCTMGR_FORMAT}"]
    associations = parse_associations(probes.ask("sacctmgr show user", asked, by_controller=False))
    options = probes.ask("srun --help", ["srun", "--help"], by_controller=False)
    mounts = read_mounts(_read("/proc/mounts").splitlines())
    return Findings(
        host=socket.gethostname(),
        user=user,
        groups=_groups(),
        version=version,
        partitions=tuple(with_rules(partitions, rules)),
        settings=settings,
        associations=tuple(associations),
        runtimes=find_runtimes(options),
        folders=tuple(list_folders(_existing(VARIABLES), str(Path.cwd()), mounts)),
        python=judge_folder(sys.executable, "", mounts),
        fabric=_read_fabric(),
        own_gpus=find_accelerator(),
        environ={name: os.environ[name] for name in _CHOOSING if name in os.environ},
        failed=probes.failed,
    )


def find_runtimes(srun_help: str) -> dict[str, str]:
    """Container runtime -> where it was seen: those of this machine, and the plugin of srun's."""
    found = {"pyxis": f"srun --help has {_PLUGIN_OPTION}"} if _PLUGIN_OPTION in srun_help else {}
    return found | {name: path for name in _RUNTIMES if (path := shutil.which(name))}


def _read_fabric(root: Path = Path("/sys/class")) -> Fabric:
    def names(folder: str) -> list[str]:
        return sorted(path.name for path in (root / folder).glob("*"))

    # A virtual machine's driver may say `unknown`.
    states = [(name, _read(root / "net" / name / "operstate").strip() != "down") for name in names("net")]
    return read_fabric(states, names("infiniband"))


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _existing(names: Sequence[str]) -> dict[str, str]:
    """The variables that name a folder in which this user may write."""
    return {name: path for name in names if (path := os.environ.get(name)) and _is_writable(path)}


def _is_writable(path: str) -> bool:
    """Asked in a process of its own, since a file system that is away answers never."""
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
        except KeyError:  # a group that only a directory service knows, which is away
            continue
    return tuple(found)


def _shorten(error: SlurmRLError) -> str:
    said = error.seen if isinstance(error.seen, str) else error.rule
    return " ".join(said.split())[:160]
