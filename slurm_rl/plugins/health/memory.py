"""Bad nodes over restarts of a job: what the run and the site know of them, and how Slurm is told.

Of a running job Slurm refuses to change ExcNodeList; right after `scontrol requeue`, while the job completes, it takes
the change, and keeps it over further requeues and restarts of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from slurm_rl.config.gres import parse_gpus
from slurm_rl.errors import SlurmRLError
from slurm_rl.launchers.slurm.commands import exclude_nodes, excluded_nodes, hostnames
from slurm_rl.launchers.slurm.partitions import NodeLine, boot_times, find_spelling, list_nodes
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.sbatch import SbatchOptions
from slurm_rl.plugins.health.nodes.evidence import (
    Evidence,
    find_bad,
    find_passed,
    note_evidence,
    note_passed,
    read_evidence,
)
from slurm_rl.plugins.health.nodes.exclusion import Exclusion, Part, Pool, choose_excluded
from slurm_rl.plugins.health.nodes.site import publish, read_site
from slurm_rl.run_dir import RunDir, append_event


class NodeMemory:
    """What is known of nodes to one run."""

    def __init__(self, run: RunDir, plan: JobPlan) -> None:
        self.run_dir, self.plan = run, plan
        self.now_bad: dict[str, Evidence] = {}
        """Found bad in this start of the job."""

    def note(self, evidence: Evidence) -> None:
        self.now_bad[evidence.node] = evidence
        note_evidence(self.run_dir, evidence)

    def recall(self) -> dict[str, Evidence]:
        """Nodes that stay out; what this run knows is told to the site first, as others may have seen it."""
        rows = read_evidence(self.run_dir)
        publish(self.plan.preflight.site_dir, rows)
        rows += read_site(self.plan.preflight.site_dir)
        now = time.time()
        bad = find_bad(rows, now)
        hard = [node for node, one in bad.items() if one.strength == "hard"]
        # Slurm is asked only where there is something to forgive.
        return find_bad(rows, now, boot_times(hard)) if hard else bad

    def passed(self, test: str, within_s: float) -> set[str]:
        """Nodes that passed it so lately, in this run or another one of the site."""
        rows = [*read_evidence(self.run_dir), *read_site(self.plan.preflight.site_dir)]
        return find_passed(rows, test, time.time() - within_s)

    def note_passed(self, nodes: Sequence[str], test: str) -> None:
        note_passed(self.run_dir, nodes, test)
        publish(self.plan.preflight.site_dir, read_evidence(self.run_dir))

    def choose(self, alike: Collection[str] = ()) -> Exclusion:
        """The nodes to exclude at the next start of the job.

        Args:
            alike: nodes that the job has, by rank: only such are counted as left for it. None: all of the partition.

        Raises:
            SlurmRLError: Slurm does not answer.
        """
        bad = {**self.recall(), **self.now_bad}
        if not bad:
            return Exclusion()
        return choose_excluded(
            bad,
            _list_parts(self.plan, list(alike)),
            share=self.plan.preflight.max_excluded_share,
            excluded=self._users("exclude"),
            required=self._users("nodelist"),
        )

    def _users(self, option: str) -> list[str]:
        """Names in an option of the user's."""
        said = str(self.plan.sbatch.get(option, ""))
        return hostnames(said) if said else []

    def tell_slurm(self, job_id: str, found: Exclusion, within_s: float) -> None:
        """Right after a requeue: the job's next start gets none of these nodes."""
        if found.kept:
            append_event(self.run_dir, "nodes/kept", job=job_id, why=found.kept)
        try:
            wanted = sorted({*self._users("exclude"), *found.names})
            if wanted == sorted(excluded_nodes(job_id)):
                return
            exclude_nodes(job_id, wanted, within_s)
        except SlurmRLError as error:
            append_event(self.run_dir, "nodes/not_excluded", job=job_id, nodes=found.names, cause=str(error))
        else:
            append_event(self.run_dir, "nodes/excluded", job=job_id, nodes=found.names)


def avoid_bad_nodes(run: RunDir, plan: JobPlan) -> tuple[JobPlan, Exclusion]:
    """The plan to submit, which excludes what is known to be bad; that on disk stays as the user made it, since what
    is bad today is repaired tomorrow."""
    try:
        found = NodeMemory(run, plan).choose()
    except SlurmRLError:
        return plan, Exclusion()
    if not found.names:
        return plan, found
    said = str(plan.sbatch.get("exclude", ""))
    exclude = {"exclude": ",".join([*filter(None, [said]), *found.names])}
    het = tuple({**options, **exclude} for options in plan.het)
    return replace(plan, sbatch={**plan.sbatch, **exclude}, het=het), found


def _list_parts(plan: JobPlan, alike: Sequence[str]) -> list[Part]:
    """The job, or its kinds of nodes, with the nodes that Slurm has for each.

    Args:
        alike: nodes that the job has, by rank; empty before it has any.
    """
    if not plan.het:
        own = os.environ.get("SLURM_JOB_PARTITION") or plan.sbatch.get("partition")
        return [Part(_ask_pool(plan.sbatch, own, alike), plan.num_nodes + plan.num_spare_nodes)]
    parts, first = [], 0
    for kind, options in zip(plan.kinds, (plan.sbatch, *plan.het), strict=True):
        own = options.get("partition") or os.environ.get("SLURM_JOB_PARTITION")
        pool = _ask_pool(options, own, alike[first : first + kind.count], by_words=not alike)
        parts.append(Part(pool, kind.count, kind.name))
        first += kind.count
    return parts


def _ask_pool(options: SbatchOptions, partition: object, alike: Sequence[str], *, by_words: bool = False) -> Pool:
    """The nodes of a partition.

    Args:
        by_words: count those alone that have the feature and the type of GPU in the options, as far as words tell.
    """
    nodes = list_nodes(str(partition) if partition else None)
    # Alike to those that the job has now; without features only where it asks for some.
    by_feature = "constraint" in options

    def kind(node: NodeLine) -> tuple[str, str]:
        return node.size, node.features if by_feature else ""

    kinds = {kind(nodes[name]) for name in alike if name in nodes}
    usable = {name for name, node in nodes.items() if node.is_in_service and (not kinds or kind(node) in kinds)}
    return Pool(set(nodes), {name for name in usable if not by_words or _has_words(nodes[name], options)})


def _has_words(node: NodeLine, options: SbatchOptions) -> bool:
    """Whether the node has what the options ask for by name; of an expression of features nothing is known.

    >>> old = NodeLine("40|1|gpu:V100:4", "old,ib", True)
    >>> _has_words(old, {"constraint": "old", "gres": "gpu:v100:4"}), _has_words(old, {"constraint": "new"})
    (True, False)
    """
    feature = str(options.get("constraint", ""))
    asked = set(filter(None, parse_gpus(str(options.get("gres", "")))))
    offered = [one for one in parse_gpus(node.size.rpartition("|")[2]) if one]
    has_feature = not re.fullmatch(r"[\w.-]+", feature) or feature in node.features.split(",")
    return has_feature and all(find_spelling(one, offered) for one in asked)


def describe(bad: Mapping[str, Evidence]) -> str:
    """`n2: ecc, GPU 0: a row of its memory could not be remapped`."""
    return "; ".join(f"{node}: {one.check}, {one.value}" for node, one in bad.items())
