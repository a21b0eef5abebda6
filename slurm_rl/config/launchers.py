"""Registry of launchers and their capabilities. Standard library only."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class LauncherEntry:
    """Classes and capabilities of a launcher; the code is in launchers/<name>/, or launch/here.py."""

    launcher: str
    """`module:class`, a `Launcher`; see launch/protocol.py."""
    allocation: str | None = None
    """`module:class` of its `Allocation` (launch/controller/allocation.py); None: the submitted program builds it."""
    options: str | None = None
    """`module:function` that builds the options of a batch job; see plan/sbatch.py. Set for a queue, which can requeue
    jobs, hold spare nodes and mix node groups."""
    sweep: str | None = None
    """`module:function` that submits all runs of a sweep at once; see launch/slurm/sweep_arrays.py."""
    on_this_machine: bool = False
    """The controller runs on the submitting machine."""
    by_node: bool = False
    """The user starts `join` on each machine."""
    existing: bool = False
    """Uses an existing Ray cluster at cluster.address, with its own image, files and Ray."""
    lacks: tuple[str, ...] = ("cluster.nodes", "cluster.topology", "cluster.remote_root")
    """Keys and sections that it does not support."""

    @property
    def is_queue(self) -> bool:
        return self.options is not None


_HOME = "slurm_rl.launch"

LAUNCHERS: Final[dict[str, LauncherEntry]] = {
    "local": LauncherEntry(f"{_HOME}.here:HereLauncher", f"{_HOME}.here:LocalAllocation", on_this_machine=True),
    "slurm": LauncherEntry(
        f"{_HOME}.slurm.launcher:SlurmLauncher",
        f"{_HOME}.slurm.allocation:SlurmAllocation",
        options="slurm_rl.plan.sbatch:build_sbatch_options",
        sweep=f"{_HOME}.slurm.sweep_arrays:submit_arrays",
        lacks=("cluster.remote_root",),
    ),
    "ray": LauncherEntry(
        f"{_HOME}.ray.launcher:RayLauncher",
        existing=True,
        lacks=("cluster.nodes", "cluster.topology", "cluster.setup", "container.runtime", "job.num_spare_nodes"),
    ),
    "manual": LauncherEntry(
        f"{_HOME}.machines.allocation:ManualLauncher",
        f"{_HOME}.machines.allocation:MachineAllocation",
        on_this_machine=True,
        by_node=True,
    ),
}
