"""The nodes of the allocation: which of them the next attempt runs on, after the preflight."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.jsonl import read_rows
from slurm_rl.launchers.slurm.components import granted_hosts, split_hosts
from slurm_rl.launchers.slurm.partitions import nodes_out_of_service
from slurm_rl.launchers.slurm.switches import order_by_topology, read_topology
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health.gate import fabric
from slurm_rl.plugins.health.memory import NodeMemory, describe
from slurm_rl.plugins.health.nodes.evidence import Evidence
from slurm_rl.plugins.health.preflight import Preflight, run_preflight
from slurm_rl.run_dir import AttemptDir, RunDir, append_event


class Hosts:
    """All nodes of a Slurm job, and those that are out of the game."""

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan = run, plan
        self.names = granted_hosts(os.environ)
        self.memory = NodeMemory(run, plan)
        self.unfit: dict[str, str] = {}
        """Host -> why; what is unfit once stays so for this start of the job."""
        self.lacks_good = False
        """Too few are fit, and a requeue would give others."""

    @property
    def fit(self) -> list[str]:
        return [name for name in self.names if name not in self.unfit]

    @property
    def are_enough(self) -> bool:
        return len(self.fit) >= self.plan.num_nodes and not self.lacks_good

    def choose(self, attempt: AttemptDir, env: Mapping[str, str]) -> tuple[list[str], Preflight]:
        """Exactly as many nodes as the run needs, all of which passed the preflight; and what that found.

        Raises:
            BringUpError: there are fewer, naming each of the others with its trouble; or so many have the same trouble
                that it is not theirs; or a check found one for which preflight.policy is refuse.
        """
        avoided = self._recall(attempt)
        found = run_preflight(self.plan, attempt, self.fit, env, self.memory.passed("fabric", fabric.HOLDS_S))
        require_sense(found, self.fit)
        for host, troubles in found.judged.unfit.items():
            for check, seen in troubles.items():
                self.memory.note(
                    Evidence.found(host, check, seen, "hard", attempt=attempt.number, holds_s=found.holds_s(check))
                )
            self.unfit[host] = "; ".join(troubles.values())
        if found.fabric.passed:
            self.memory.note_passed(found.fabric.passed, "fabric")
        for host in found.silent:
            self.unfit[host] = f"did not answer ({found.srun_said or 'no word'})"
            self.memory.note(Evidence.found(host, "answer", "it did not answer", "soft", attempt=attempt.number))
        if self.are_enough:
            return self._choose_fit(avoided), found
        raise self._too_few()

    def _choose_fit(self, avoided: Mapping[str, Evidence]) -> list[str]:
        """As many as the run needs, in the order of its ranks: by kind, and then neighbours beside each other.

        Of those that are remembered as bad only as many as must be.
        """
        topology = read_topology() if self.plan.num_nodes > 1 else {}
        good = order_by_topology([host for host in self.fit if host not in avoided], topology)
        chosen = [*good, *(host for host in self.fit if host in avoided)][: self.plan.num_nodes]
        parts = split_hosts(self.plan, [host for host in self.fit if host in chosen], os.environ)
        return [host for part in parts for host in order_by_topology(part.nodes, topology)]

    def _recall(self, attempt: AttemptDir) -> dict[str, Evidence]:
        """The nodes of this job that are remembered as bad, where the run and Slurm could not keep it off them.

        Raises:
            BringUpError: without them there are too few, and a requeue will exclude them; once for the same nodes.
        """
        if self.plan.preflight.level == "off":
            return {}
        try:
            avoided = {host: one for host, one in self.memory.recall().items() if host in self.fit}
            if not avoided or len(self.fit) - len(avoided) >= self.plan.num_nodes:
                return avoided
            names = sorted(avoided)
            will_go = set(names) <= set(self.memory.choose(self.names).names)
        except SlurmRLError:
            return {}  # Slurm is away; the preflight says how they are
        told = {"job": os.environ["SLURM_JOB_ID"], "nodes": names}
        before = (row for row in read_rows(self.run_dir.events) if row["kind"] == "nodes/avoided")
        if not will_go or any(told.items() <= row.items() for row in before):
            return avoided
        append_event(self.run_dir, "nodes/avoided", attempt=attempt.number, **told)
        self.lacks_good = True
        raise BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that are not remembered as bad",
            seen=describe(avoided),
            action="the job is requeued without them; see `python -m slurm_rl nodes`",
        )

    def _too_few(self) -> BringUpError:
        try:
            kept = {host: why for host, why in self.memory.choose(self.names).kept.items() if host in self.unfit}
        except SlurmRLError as error:
            kept = {"Slurm": str(error)}
        self.lacks_good = bool(self.memory.now_bad) and not kept
        troubles = "; ".join(f"{host} {trouble}" for host, trouble in self.unfit.items())
        why = "".join(f"; {host} is not excluded: {words}" for host, words in kept.items())
        return BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that pass the preflight",
            seen=f"{len(self.fit)} of {len(self.names)}: {troubles or ', '.join(self.names)}{why}",
            action="the job is requeued without them" if self.lacks_good else self._advise(),
        )

    def _advise(self) -> str:
        """What helps where no requeue would: a job of several kinds can hold no spares."""
        fewer = "ask for fewer of its kind (cluster.nodes)" if self.plan.kinds else "hold spares (job.num_spare_nodes)"
        return f"exclude the node (cluster.slurm.exclude), or {fewer}"

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


def require_sense(found: Preflight, hosts: Sequence[str]) -> None:
    """Raise BringUpError for what no node can be blamed for, and for what the user lets no node have."""
    if len(found.silent) >= 2 and 2 * len(found.silent) >= len(hosts):
        raise BringUpError(
            "the nodes must answer the preflight",
            seen=f"{', '.join(found.silent)} did not ({found.srun_said or 'no word'})",
            action="see whether srun starts anything on them: srun -N2 hostname",
        )
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
