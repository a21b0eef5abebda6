"""The nodes of the allocation: which of them the next attempt runs on, after the preflight."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.launchers.slurm.commands import hostnames
from slurm_rl.launchers.slurm.partitions import active_features, nodes_out_of_service
from slurm_rl.launchers.slurm.preflight import Preflight, run_preflight
from slurm_rl.nodes.evidence import Evidence, note_evidence
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir


def order_by_feature(hosts: Sequence[str], features: Mapping[str, Collection[str]], wanted: Sequence[str]) -> list[str]:
    """One host for each rank, with the feature that the rank wants.

    >>> order_by_feature(["a", "b"], {"a": {"v100"}, "b": {"h100", "ib"}}, ["h100", "v100"])
    ['b', 'a']

    Raises:
        BringUpError: a rank goes without; names what each host has.
    """
    # Hosts with few of the wanted features first, since others can take other places.
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

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan = run, plan
        self.names = hostnames(os.environ["SLURM_JOB_NODELIST"])
        self.unfit: dict[str, str] = {}
        """Host -> why; what is unfit once stays so for this start of the job."""

    @property
    def fit(self) -> list[str]:
        return [name for name in self.names if name not in self.unfit]

    @property
    def are_enough(self) -> bool:
        return len(self.fit) >= self.plan.num_nodes

    def choose(self, attempt: AttemptDir, env: Mapping[str, str]) -> tuple[list[str], Preflight]:
        """Exactly as many nodes as the run needs, all of which passed the preflight; and what that found.

        Raises:
            BringUpError: there are fewer, naming each of the others with its trouble; or so many have the same trouble
                that it is not theirs; or a check found one for which preflight.policy is refuse.
        """
        found = run_preflight(self.plan, attempt, self.fit, env)
        _require_sense(found)
        for host, troubles in found.judged.unfit.items():
            for check, seen in troubles.items():
                holds_s = next((one.holds_s for one in found.asked if one.name == check), None)
                evidence = Evidence.found(host, check, seen, "hard", attempt=attempt.number, holds_s=holds_s)
                note_evidence(self.run_dir, evidence)
            self.unfit[host] = "; ".join(troubles.values())
        self.unfit |= dict.fromkeys(found.silent, f"did not answer ({found.srun_said or 'no word'})")
        if self.are_enough:
            # In the order of the run's ranks, and as many as it needs.
            if wanted := self.plan.node_features:
                return order_by_feature(self.fit, active_features(self.fit), wanted), found
            return self.fit[: self.plan.num_nodes], found
        troubles_of = "; ".join(f"{host} {trouble}" for host, trouble in self.unfit.items())
        raise BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that pass the preflight",
            seen=f"{len(self.fit)} of {len(self.names)}: {troubles_of or ', '.join(self.names)}",
            action="exclude the node (cluster.slurm.exclude), or if all of them have the trouble, "
            "put run_dir (cluster.run_root) on a file system that every node sees",
        )

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


def _require_sense(found: Preflight) -> None:
    for check, seen in found.judged.refused.items():
        raise BringUpError(
            f"no node may fail the check {check}",
            seen=seen,
            action=f"have the node repaired, or leave it out by +preflight.policy.{check}=exclude",
        )
    for check, seen in found.judged.common.items():
        raise BringUpError(
            f"the check {check} of the preflight must not fail on half of the nodes or more, so no node is blamed",
            seen=seen,
            action="mend what all of them share: put run_dir (cluster.run_root) on a file system that every node sees, "
            f"see cluster and driver; or +preflight.policy.{check}=warn",
        )
