"""The nodes of the job around this process, and which component each is in where the job is heterogeneous.

Slurm tells a heterogeneous job's nodes by component alone: SLURM_JOB_NODELIST is the first one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_rl.launch.slurm.commands import hostnames
from slurm_rl.launch.slurm.granted import parse_counts
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import StepPart


def granted_hosts(env: Mapping[str, str]) -> list[str]:
    """All nodes of the job, by component: in the order of the run's ranks where kinds of nodes have one each."""
    return [host for part in _granted_parts(env) for host in part.nodes]


def split_hosts(plan: JobPlan, hosts: Sequence[str], env: Mapping[str, str]) -> list[StepPart]:
    """These nodes of the job as srun takes them, with the cores that a step may have there."""
    if "SLURM_HET_SIZE" not in env:
        return [StepPart(hosts, cpus=plan.cpus_per_node or env.get("SLURM_CPUS_ON_NODE"))]
    granted = {host: part for part in _granted_parts(env) for host in part.nodes}
    groups = dict.fromkeys(granted[host].group for host in hosts)
    return [
        StepPart([host for host in hosts if granted[host].group == group], group, _cpus(plan, group, env))
        for group in groups
        if group is not None
    ]


def _granted_parts(env: Mapping[str, str]) -> list[StepPart]:
    size = int(env.get("SLURM_HET_SIZE", 0))
    if not size:
        return [StepPart(hostnames(env["SLURM_JOB_NODELIST"]))]
    return [StepPart(hostnames(env[f"SLURM_JOB_NODELIST_HET_GROUP_{group}"]), group) for group in range(size)]


def _cpus(plan: JobPlan, group: int, env: Mapping[str, str]) -> int:
    least = min(parse_counts(env[f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{group}"]))
    return (plan.node_groups[group].cpus_per_node if plan.node_groups else None) or least
