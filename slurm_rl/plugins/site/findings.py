"""What was found out about a cluster, with what could not be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_rl.plugins.site.accounts import Association
from slurm_rl.plugins.site.fabric import Fabric
from slurm_rl.plugins.site.folders import Folder
from slurm_rl.plugins.site.partitions import Partition


@dataclass(frozen=True)
class Findings:
    """One look at a login node; nothing in it is asked or assumed."""

    host: str
    user: str
    groups: tuple[str, ...]
    """Unix groups of the user."""
    version: str
    """What `sinfo --version` says."""
    partitions: tuple[Partition, ...]
    """Those that this user may see, the default one first."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """slurm.conf as slurmctld has it."""
    associations: tuple[Association, ...] = ()
    runtimes: Mapping[str, str] = field(default_factory=dict)
    """Container runtime -> where it was seen."""
    folders: tuple[Folder, ...] = ()
    """For run directories, the likeliest first."""
    python: Folder | None = None
    """The interpreter that the nodes would start."""
    fabric: Fabric | None = None
    own_gpus: tuple[str, int] = ("cpu", 0)
    """Accelerator and number of GPUs of this machine."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that choose for sbatch, such as SBATCH_ACCOUNT."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """What was asked in vain -> why."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Partition -> why `sbatch --test-only` takes no job there."""

    def find_partition(self, name: str) -> Partition | None:
        return next((partition for partition in self.partitions if partition.name == name), None)
