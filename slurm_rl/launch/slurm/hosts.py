"""Choose the nodes of the job on which the next attempt runs, and the order of their ranks.

Consecutive ranks communicate most: shards of one copy of the model, GPUs of one engine. Therefore nodes of one leaf
switch, or of one block, get consecutive ranks. Surplus nodes are those with the fewest neighbours.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slurm_rl.errors import BringUpError, SlurmRLError
from slurm_rl.launch.hooks import open_node_checks
from slurm_rl.launch.slurm.command_line import run_slurm
from slurm_rl.launch.slurm.granted import granted_hosts, split_hosts
from slurm_rl.launch.slurm.partitions import nodes_out_of_service
from slurm_rl.node.rank_discovery import expand_hosts
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event

Topology = Mapping[str, tuple[str, ...]]
"""Host -> its switches or blocks, the largest first."""


class Hosts:
    """All nodes of a Slurm job, and those that are unfit."""

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan = run, plan
        self.names = granted_hosts(os.environ)
        self.checks = open_node_checks(run, plan)
        self.unfit: dict[str, str] = {}
        """Host -> reason. A host stays unfit until the job starts again."""
        self.wants_requeue = False
        """Whether too few hosts are fit and a requeue would bring others."""
        self._found_bad = False

    @property
    def fit(self) -> list[str]:
        return [name for name in self.names if name not in self.unfit]

    @property
    def are_enough(self) -> bool:
        return len(self.fit) >= self.plan.num_nodes and not self.wants_requeue

    def choose(self, attempt: AttemptDir, env: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
        """Return the nodes of the run, and the fields of preflight/passed. Raises BringUpError if too few are fit."""
        remembered = self._recall(attempt)
        verdicts = self.checks.before_attempt(attempt, self.fit, env)
        self.unfit |= verdicts.unfit
        self._found_bad |= bool(verdicts.unfit)
        if self.are_enough:
            return self._choose_fit(remembered), verdicts.fields
        raise self._too_few()

    def _choose_fit(self, remembered: Collection[str]) -> list[str]:
        """Return nodes in the order of ranks: by kind, then by topology. Remembered nodes are the last choice."""
        topology = read_topology() if self.plan.num_nodes > 1 else {}
        good = order_by_topology([host for host in self.fit if host not in remembered], topology)
        chosen = [*good, *(host for host in self.fit if host in remembered)][: self.plan.num_nodes]
        parts = split_hosts(self.plan, [host for host in self.fit if host in chosen], os.environ)
        return [host for part in parts for host in order_by_topology(part.nodes, topology)]

    def _recall(self, attempt: AttemptDir) -> dict[str, str]:
        """Return nodes recorded as bad. Raises BringUpError, once, if a requeue without them is needed."""
        try:
            remembered = self.checks.remembered(self.fit)
            if not remembered or len(self.fit) - len(remembered) >= self.plan.num_nodes:
                return remembered
            names = sorted(remembered)
            can_exclude = set(names) <= set(self.checks.exclusion(self.names).names)
        except SlurmRLError:
            return {}  # Slurm does not answer; the preflight checks the nodes
        fields = {"job": os.environ["SLURM_JOB_ID"], "nodes": names}
        earlier = (row for row in read_rows(self.run_dir.events) if row["kind"] == "nodes/avoided")
        if not can_exclude or any(fields.items() <= row.items() for row in earlier):
            return remembered
        append_event(self.run_dir, "nodes/avoided", attempt=attempt.number, **fields)
        self.wants_requeue = True
        raise BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that are not recorded as bad",
            seen="; ".join(f"{host}: {reason}" for host, reason in remembered.items()),
            action="the job is requeued without them; see `python -m slurm_rl doctor --nodes`",
        )

    def _too_few(self) -> BringUpError:
        try:
            skipped = {
                host: why for host, why in self.checks.exclusion(self.names).skipped.items() if host in self.unfit
            }
        except SlurmRLError as error:
            skipped = {"Slurm": str(error)}
        self.wants_requeue = self._found_bad and not skipped
        reasons = "; ".join(f"{host} {reason}" for host, reason in self.unfit.items())
        notes = "".join(f"; {host} is not excluded: {why}" for host, why in skipped.items())
        fewer = (
            "ask for fewer of its kind (cluster.nodes)"
            if self.plan.node_groups
            else "hold spares (job.num_spare_nodes)"
        )
        advice = f"exclude the node (cluster.slurm.exclude), or {fewer}"
        return BringUpError(
            f"the run needs exactly {self.plan.num_nodes} nodes that pass the preflight",
            seen=f"{len(self.fit)} of {len(self.names)}: {reasons or ', '.join(self.names)}{notes}",
            action="the job is requeued without them" if self.wants_requeue else advice,
        )

    def note_losses(self, named: list[str]) -> list[str]:
        """Mark the nodes unfit that srun named or that Slurm has taken out of service; return them."""
        try:
            down = nodes_out_of_service()
        except SlurmRLError:
            down = []
        lost = [host for host in self.fit if host in named or host in down]
        self.unfit |= dict.fromkeys(lost, "was lost")
        return lost


def read_topology() -> Topology:
    """Return the topology of the cluster; empty if Slurm has none or does not answer."""
    try:
        return parse_topology(run_slurm(["scontrol", "show", "topology"]))
    except SlurmRLError:
        return {}


def parse_topology(output: str) -> dict[str, tuple[str, ...]]:
    """Parse `scontrol show topology` of the plugins tree and block: a line for each switch or block.

    >>> lines = "SwitchName=s1 Level=0 Nodes=n[1-2]\\nSwitchName=top Level=1 Nodes=n[1-3] Switches=s1\\n"
    >>> parse_topology(lines)
    {'n1': ('top', 's1'), 'n2': ('top', 's1'), 'n3': ('top',)}
    """
    groups: dict[str, list[str]] = {}
    for line in output.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = fields.get("SwitchName") or fields.get("BlockName") or fields.get("AggregatedBlock")
        if name and fields.get("Nodes"):
            groups[name] = expand_hosts(fields["Nodes"])
    ordered = sorted(groups, key=lambda name: -len(groups[name]))
    found: dict[str, tuple[str, ...]] = {}
    for name in ordered:
        for host in groups[name]:
            found[host] = (*found.get(host, ()), name)
    return found


def order_by_topology(hosts: Sequence[str], topology: Topology) -> list[str]:
    """Sort hosts so that neighbours are adjacent, full switches or blocks first; otherwise keep the order.

    >>> topology = {"n1": ("b1",), "n2": ("b1",), "n3": ("b2",), "n4": ("b2",)}
    >>> order_by_topology(["n1", "n3", "n4"], topology)
    ['n3', 'n4', 'n1']
    """
    prefixes = {
        host: [topology.get(host, ())[:end] for end in range(1, len(topology.get(host, ())) + 1)] for host in hosts
    }
    sizes = Counter(prefix for host in hosts for prefix in prefixes[host])
    first: dict[tuple[str, ...], int] = {}
    for place, host in enumerate(hosts):
        for prefix in prefixes[host]:
            first.setdefault(prefix, place)

    def key(host: str) -> list[tuple[int, int]]:
        return [*((-sizes[prefix], first[prefix]) for prefix in prefixes[host]), (0, hosts.index(host))]

    return sorted(hosts, key=key)
