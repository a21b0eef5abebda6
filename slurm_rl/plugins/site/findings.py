"""Facts about a cluster, and the queries that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_rl.plugins.site.accounts import Association
from slurm_rl.plugins.site.fabric import Fabric
from slurm_rl.plugins.site.folders import Folder
from slurm_rl.plugins.site.partitions import Partition


@dataclass(frozen=True)
class Findings:
    """Facts from one inspection of a login node, without questions and assumptions."""

    host: str
    user: str
    groups: tuple[str, ...]
    """Unix groups of the user."""
    version: str
    """Output of `sinfo --version`."""
    partitions: tuple[Partition, ...]
    """Those that this user may see, the default one first."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """slurm.conf as slurmctld has it."""
    associations: tuple[Association, ...] = ()
    runtimes: Mapping[str, str] = field(default_factory=dict)
    """Container runtime -> where it was seen."""
    folders: tuple[Folder, ...] = ()
    """Candidate folders for run directories, best first."""
    python: Folder | None = None
    """The interpreter that the nodes would start."""
    fabric: Fabric | None = None
    own_gpus: tuple[str, int] = ("cpu", 0)
    """Accelerator and number of GPUs of this machine."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that choose for sbatch, such as SBATCH_ACCOUNT."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Failed query -> reason."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Partition -> why `sbatch --test-only` takes no job there."""

    def find_partition(self, name: str) -> Partition | None:
        return next((partition for partition in self.partitions if partition.name == name), None)
