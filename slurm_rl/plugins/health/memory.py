"""Health checks of one run: preflight, evidence of the run and of its site, and the nodes to exclude."""

import os
import re
import time
from collections.abc import Mapping, Sequence

from slurm_rl.config.gres import parse_gpus
from slurm_rl.errors import BringUpError
from slurm_rl.launch.hooks import Exclusion, NodeVerdicts
from slurm_rl.launch.slurm.exclude import user_nodes
from slurm_rl.launch.slurm.partitions import NodeLine, boot_times, find_spelling, list_nodes
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import SbatchOptions
from slurm_rl.plugins.health.evidence import Evidence, find_bad, note_evidence, read_evidence
from slurm_rl.plugins.health.exclusion import Part, choose_excluded
from slurm_rl.plugins.health.preflight import Preflight, run_preflight
from slurm_rl.plugins.health.site import publish, read_site
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir


class HealthChecks:
    """See `NodeChecks`."""

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan, self.site = run, plan, plan.preflight.site_dir
        self._now_bad: dict[str, Evidence] = {}
        """Nodes found bad since the start of the controller."""

    def remembered(self, hosts: Sequence[str]) -> dict[str, str]:
        if self.plan.preflight.level == "off":
            return {}
        return {host: f"{one.check}, {one.value}" for host, one in self._recall().items() if host in hosts}

    def before_attempt(self, attempt: AttemptDir, hosts: Sequence[str], env: Mapping[str, str]) -> NodeVerdicts:
        found = run_preflight(self.plan, attempt, hosts, env)
        require_single_faults(found, hosts)
        unfit = {host: "; ".join(troubles.values()) for host, troubles in found.decision.unfit.items()}
        holds_s = {check.name: check.holds_s for check in found.checks}
        for host, troubles in found.decision.unfit.items():
            for check, seen in troubles.items():
                self._note(Evidence.new(host, check, seen, "hard", attempt=attempt.number, holds_s=holds_s.get(check)))
        for host in found.silent:
            unfit[host] = f"did not answer ({found.srun_error or 'no output'})"
            self._note(Evidence.new(host, "answer", "it did not answer", "soft", attempt=attempt.number))
        return NodeVerdicts(unfit, found.to_event())

    def _note(self, evidence: Evidence) -> None:
        self._now_bad[evidence.node] = evidence
        note_evidence(self.run_dir, evidence)

    def _recall(self) -> dict[str, Evidence]:
        """Return the bad nodes, after publishing the run's own evidence to the site."""
        rows = read_evidence(self.run_dir)
        publish(self.site, rows)
        rows += read_site(self.site)
        now = time.time()
        bad = find_bad(rows, now)
        hard = [node for node, one in bad.items() if one.strength == "hard"]
        return find_bad(rows, now, boot_times(hard)) if hard else bad

    def exclusion(self, hosts: Sequence[str] = ()) -> Exclusion:
        bad = {**self._recall(), **self._now_bad}
        if not bad:
            return Exclusion()
        return choose_excluded(
            bad,
            _list_parts(self.plan, list(hosts)),
            share=self.plan.preflight.max_excluded_share,
            excluded=user_nodes(self.plan, "exclude"),
            required=user_nodes(self.plan, "nodelist"),
        )


def require_single_faults(found: Preflight, hosts: Sequence[str]) -> None:
    """Raise BringUpError if a fault is common to many nodes, or if the policy of its check is `refuse`."""
    if len(found.silent) >= 2 and 2 * len(found.silent) >= len(hosts):
        raise BringUpError(
            "the nodes must answer the preflight",
            seen=f"{', '.join(found.silent)} did not ({found.srun_error or 'no output'})",
            action="check whether srun works on them: srun -N2 hostname",
        )
    for check, seen in found.decision.refused.items():
        raise BringUpError(
            f"no node may fail the check {check}",
            seen=seen,
            action=f"have the node repaired, or exclude it with +preflight.on_failure.{check}=exclude",
        )
    for check, seen in found.decision.common.items():
        raise BringUpError(
            f"the check {check} of the preflight must not fail on half of the nodes or more; no node is excluded",
            seen=seen,
            action="fix the part that the nodes share: cluster.run_root on a file system that every node sees, the "
            f"settings of `cluster`, the driver; or set +preflight.on_failure.{check}=warn",
        )


def _list_parts(plan: JobPlan, hosts: Sequence[str]) -> list[Part]:
    """Return the job's requests by kind of node, with the nodes that Slurm has for each.

    Args:
        hosts: nodes of the job by rank; empty before it starts.
    """
    own = os.environ.get("SLURM_JOB_PARTITION")
    if not plan.het:
        names, usable = _ask_nodes(plan.sbatch, own or plan.sbatch.get("partition"), hosts)
        return [Part(names, usable, plan.num_nodes + plan.num_spare_nodes)]
    parts, first = [], 0
    for kind, options in zip(plan.node_groups, (plan.sbatch, *plan.het), strict=True):
        alike = hosts[first : first + kind.count]
        names, usable = _ask_nodes(options, options.get("partition") or own, alike, match_options=not hosts)
        parts.append(Part(names, usable, kind.count, kind.name))
        first += kind.count
    return parts


def _ask_nodes(
    options: SbatchOptions, partition: object, alike: Sequence[str], *, match_options: bool = False
) -> tuple[set[str], set[str]]:
    """Return the nodes of a partition, and the usable ones: those like the ones that the job has now.

    Args:
        match_options: count only nodes with the feature and the GPU type of the options.
    """
    nodes = list_nodes(str(partition) if partition else None)
    by_feature = "constraint" in options

    def kind(node: NodeLine) -> tuple[str, str]:
        return node.size, node.features if by_feature else ""

    kinds = {kind(nodes[name]) for name in alike if name in nodes}
    usable = {name for name, node in nodes.items() if node.is_in_service and (not kinds or kind(node) in kinds)}
    return set(nodes), {name for name in usable if not match_options or _matches(nodes[name], options)}


def _matches(node: NodeLine, options: SbatchOptions) -> bool:
    """Return whether the node has the feature and GPU type of the options; expressions of features always match.

    >>> old = NodeLine("40|1|gpu:V100:4", "old,ib", True)
    >>> _matches(old, {"constraint": "old", "gres": "gpu:v100:4"}), _matches(old, {"constraint": "new"})
    (True, False)
    """
    feature = str(options.get("constraint", ""))
    wanted = set(filter(None, parse_gpus(str(options.get("gres", "")))))
    offered = [gpu for gpu in parse_gpus(node.size.rpartition("|")[2]) if gpu]
    has_feature = not re.fullmatch(r"[\w.-]+", feature) or feature in node.features.split(",")
    return has_feature and all(find_spelling(gpu, offered) for gpu in wanted)
