"""Nodes and resources that Slurm granted the job around this process, from its environment."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.errors import ConfigError
from slurm_rl.node.rank_discovery import expand_hosts
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.step import StepPart


@dataclass(frozen=True)
class GrantedJob:
    """Nodes and resources of a running job."""

    job_id: str
    num_nodes: int
    gpus_per_node: int
    cpus_per_node: int
    """Minimum over the nodes."""
    num_restarts: int
    """Number of times Slurm has restarted this job."""
    partition: str | None
    account: str | None
    qos: str | None


def read_allocation(env: Mapping[str, str]) -> GrantedJob:
    """Return the allocation with the environment `env`. Raises ConfigError outside of a job."""
    if "SLURM_JOB_ID" not in env or "SLURM_JOB_NUM_NODES" not in env:
        raise ConfigError(
            "`run-in-job` runs inside a Slurm job (SLURM_JOB_ID and SLURM_JOB_NUM_NODES are set)",
            action="sbatch -N <nodes> job.sbatch ..., or without `run-in-job`, which submits the job for you",
        )
    return GrantedJob(
        job_id=env["SLURM_JOB_ID"],
        num_nodes=int(env["SLURM_JOB_NUM_NODES"]),
        gpus_per_node=_count_gpus(env),
        cpus_per_node=min(parse_counts(env.get("SLURM_JOB_CPUS_PER_NODE") or env["SLURM_CPUS_ON_NODE"])),
        num_restarts=int(env.get("SLURM_RESTART_COUNT", 0)),
        partition=env.get("SLURM_JOB_PARTITION"),
        account=env.get("SLURM_JOB_ACCOUNT"),
        qos=env.get("SLURM_JOB_QOS"),
    )


def parse_counts(text: str) -> list[int]:
    """Parse Slurm's compressed counts: one number per node.

    >>> parse_counts("72(x2),36")
    [72, 72, 36]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ConfigError("Slurm's counts are of the form 72(x2),36", seen=text)
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _count_gpus(env: Mapping[str, str]) -> int:
    # SLURM_GPUS_ON_NODE appears with --gres and --gpus-per-node; older versions set only SLURM_JOB_GPUS.
    if env.get("SLURM_GPUS_ON_NODE"):
        return int(env["SLURM_GPUS_ON_NODE"])
    return len([gpu for gpu in env.get("SLURM_JOB_GPUS", "").split(",") if gpu])


def granted_hosts(env: Mapping[str, str]) -> list[str]:
    """Return all nodes of the job by component, which is the order of ranks if node groups are components."""
    return [host for part in _granted_parts(env) for host in part.nodes]


def split_hosts(plan: JobPlan, hosts: Sequence[str], env: Mapping[str, str]) -> list[StepPart]:
    """Return these nodes of the job as parts of an srun, with the cores of a step there."""
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
        return [StepPart(expand_hosts(env["SLURM_JOB_NODELIST"]))]
    return [StepPart(expand_hosts(env[f"SLURM_JOB_NODELIST_HET_GROUP_{group}"]), group) for group in range(size)]


def _cpus(plan: JobPlan, group: int, env: Mapping[str, str]) -> int:
    least = min(parse_counts(env[f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{group}"]))
    return (plan.node_groups[group].cpus_per_node if plan.node_groups else None) or least
