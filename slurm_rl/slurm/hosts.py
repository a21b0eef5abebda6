"""The nodes of the allocation: which of them the next attempt runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir
from slurm_rl.slurm.commands import hostnames
from slurm_rl.slurm.partitions import nodes_out_of_service
from slurm_rl.slurm.preflight import Preflight, run_preflight


class Hosts:
    """All nodes of a Slurm job, and those that are out of the game."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.names = hostnames(os.environ["SLURM_JOB_NODELIST"])
        self.unfit: dict[str, str] = {}
        """Host -> why; what is unfit once stays so for this start of the job."""

    @property
    def fit(self) -> list[str]:
        return [name for name in self.names if name not in self.unfit]

    @property
    def are_enough(self) -> bool:
        return len(self.fit) >= self.plan.num_nodes

    def choose(self, attempt: AttemptDir, env: Mapping[str, str]) -> list[str]:
        """Exactly as many nodes as the run needs, all of which passed the preflight.

        Raises:
            BringUpError: there are fewer; names each of the others with its trouble.
        """
        while self.are_enough:
            found = run_preflight(self.plan, attempt, self.fit, env)
            self._note(found)
            if len(found.healthy) >= self.plan.num_nodes:
                return found.healthy[: self.plan.num_nodes]
        troubles = "; ".join(f"{host} {trouble}" for host, trouble in self.unfit.items())
        raise BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that pass the preflight",
            seen=f"{len(self.fit)} of {len(self.names)}: {troubles or ', '.join(self.names)}",
            action="exclude the node (cluster.slurm.exclude), or if all of them have the trouble, "
            "put run_dir (cluster.run_root) on a file system that every node sees",
        )

    def _note(self, found: Preflight) -> None:
        silent = [host for host in self.fit if host not in found.healthy and host not in found.problems]
        self.unfit |= found.problems | dict.fromkeys(silent, f"did not answer ({found.srun_said or 'no word'})")

    def note_losses(self, named: list[str]) -> list[str]:
        """Take out the nodes that Slurm gave up; returns them.

        Args:
            named: those that srun named already; Slurm is asked about the others.
        """
        try:
            down = nodes_out_of_service()
        except SlurmRLError:
            down = []
        lost = [host for host in self.fit if host in named or host in down]
        self.unfit |= dict.fromkeys(lost, "was lost")
        return lost
