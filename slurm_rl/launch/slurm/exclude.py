"""Exclude bad nodes from a job, at its submission and at its requeue.

Slurm refuses to change ExcNodeList of a running job. Right after `scontrol requeue`, while the job completes, it
accepts the change, and keeps it over further requeues and restarts of slurmctld.
"""

from __future__ import annotations

from dataclasses import replace

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.hooks import Exclusion, open_node_checks
from slurm_rl.launch.slurm.commands import exclude_nodes, excluded_nodes, hostnames
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, append_event


def user_nodes(plan: JobPlan, option: str) -> list[str]:
    """Return the node names in an sbatch option of the user."""
    names = str(plan.sbatch.get(option, ""))
    return hostnames(names) if names else []


def exclude_at_submit(run: RunDir, plan: JobPlan) -> tuple[JobPlan, Exclusion]:
    """Return the plan to submit, without nodes that are bad now. The plan on disk stays, since they may be repaired."""
    try:
        found = open_node_checks(run, plan).exclusion()
    except SlurmRLError:
        return plan, Exclusion()
    if not found.names:
        return plan, found
    exclude = {"exclude": ",".join([*filter(None, [str(plan.sbatch.get("exclude", ""))]), *found.names])}
    het = tuple({**options, **exclude} for options in plan.het)
    return replace(plan, sbatch={**plan.sbatch, **exclude}, het=het), found


def exclude_at_requeue(run: RunDir, plan: JobPlan, job_id: str, found: Exclusion, within_s: float) -> None:
    """Set the excluded nodes of a job that was requeued just now, and log the result."""
    if found.skipped:
        append_event(run, "nodes/exclusion_skipped", job=job_id, why=found.skipped)
    try:
        wanted = sorted({*user_nodes(plan, "exclude"), *found.names})
        if wanted == sorted(excluded_nodes(job_id)):
            return
        exclude_nodes(job_id, wanted, within_s)
    except SlurmRLError as error:
        append_event(run, "nodes/not_excluded", job=job_id, nodes=found.names, cause=str(error))
    else:
        append_event(run, "nodes/excluded", job=job_id, nodes=found.names)
