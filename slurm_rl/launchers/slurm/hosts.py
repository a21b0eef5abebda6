"""The nodes of the allocation: which of them the next attempt runs on."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.launchers.slurm.commands import hostnames
from slurm_rl.launchers.slurm.partitions import active_features, nodes_out_of_service
from slurm_rl.launchers.slurm.preflight import Preflight, run_preflight
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir


def order_by_feature(hosts: Sequence[str], features: Mapping[str, Collection[str]], wanted: Sequence[str]) -> list[str]:
    """One host for each rank, with the feature that the rank wants.

    >>> order_by_feature(["a", "b"], {"a": {"v100"}, "b": {"h100", "ib"}}, ["h100", "v100"])
    ['b', 'a']

    Raises:
        BringUpError: a rank goes without; names what each host has.
    """
    # Hosts with few of the wanted features first, since others can stand in elsewhere.
    free = sorted(hosts, key=lambda host: len(set(wanted) & set(features.get(host, ()))))
    chosen: dict[int, str] = {}
    for rank, feature in enumerate(wanted):
        host = next((host for host in free if feature in features.get(host, ())), None)
        if host is None:
            has = "; ".join(f"{host}: {','.join(sorted(features.get(host, ())))}" for host in hosts)
            raise BringUpError(
                f"the allocation must hold {wanted.count(feature)} nodes with the Slurm feature {feature}",
                seen=has,
                action="see `sinfo -o '%N %b'`, and name features of the cluster in cluster.node_features",
            )
        free.remove(host)
        chosen[rank] = host
    return [chosen[rank] for rank in range(len(wanted))]


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
                return self._by_rank(found.healthy)
        troubles = "; ".join(f"{host} {trouble}" for host, trouble in self.unfit.items())
        raise BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that pass the preflight",
            seen=f"{len(self.fit)} of {len(self.names)}: {troubles or ', '.join(self.names)}",
            action="exclude the node (cluster.slurm.exclude), or if all of them have the trouble, "
            "put run_dir (cluster.run_root) on a file system that every node sees",
        )

    def _by_rank(self, healthy: list[str]) -> list[str]:
        """As many as the run needs, in the order of its ranks."""
        wanted = self.plan.node_features
        if not wanted:
            return healthy[: self.plan.num_nodes]
        return order_by_feature(healthy, active_features(healthy), wanted)

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
