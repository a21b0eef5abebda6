"""Launchers: a row holds all that others must know of one. The standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class LauncherRow:
    """A way to get machines for a run. Its folder is launchers/<name>/; that of this machine is launchers/here.py."""

    launcher: str
    """`module:class`, a `Launcher`; see launchers/protocol.py."""
    allocation: str | None = None
    """`module:class`, an `Allocation`; see job/allocation.py. None: what the cluster starts makes its own."""
    options: str | None = None
    """`module:function` for the options of its batch job; see plan/sbatch.py. Set for a queue: its jobs may be started
    again, and have spare nodes and nodes of several features."""
    sweep: str | None = None
    """`module:function` that submits all runs of a sweep at once; see sweep_arrays.py of launchers/slurm/."""
    on_this_machine: bool = False
    """The controller is a process of the machine that submits, which follows it to the end."""
    by_node: bool = False
    """The user starts `node` on each machine; nobody else can."""
    existing: bool = False
    """A Ray cluster of others, with its own image, its own files and its own Ray, at cluster.address."""

    @property
    def is_queue(self) -> bool:
        return self.options is not None


_HOME = "slurm_rl.launch"
_HERE = f"{_HOME}.here:HereLauncher"

LAUNCHERS: Final[dict[str, LauncherRow]] = {
    "local": LauncherRow(_HERE, f"{_HOME}.here:LocalAllocation", on_this_machine=True),
    "slurm": LauncherRow(
        f"{_HOME}.slurm.launcher:SlurmLauncher",
        f"{_HOME}.slurm.allocation:SlurmAllocation",
        options="slurm_rl.plan.sbatch:build_sbatch_options",
        sweep=f"{_HOME}.slurm.sweep_arrays:submit_arrays",
    ),
    "ray": LauncherRow(f"{_HOME}.ray.launcher:RayLauncher", existing=True),
    "machines": LauncherRow(
        _HERE, f"{_HOME}.machines.allocation:MachineAllocation", on_this_machine=True, by_node=True
    ),
}
