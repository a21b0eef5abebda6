"""Which node am I? Found in the environment, in a fixed order. Standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_rl.errors import BringUpError
from slurm_rl.plan.job import HOSTS_VARIABLE


@dataclass(frozen=True)
class NodeRole:
    """This node's place in the job."""

    rank: int
    num_nodes: int
    job_key: str
    """Names the job on the machine: ports and temp dirs derive from it."""
    hosts: tuple[str, ...] = ()
    """Host names by rank; empty on a single machine."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0


def discover_role(env: Mapping[str, str], *, local_job_key: str | None = None) -> NodeRole:
    """Read rank, size and job id from the environment.

    Args:
        local_job_key: given by the local launcher, where this machine is the only node.

    Raises:
        BringUpError: nothing in the environment says which node this is.
    """
    if local_job_key is not None:
        return NodeRole(0, 1, local_job_key)
    if "SLURM_PROCID" in env and "SLURM_JOB_ID" in env:
        hosts = tuple(filter(None, env.get(HOSTS_VARIABLE, "").split(",")))
        return NodeRole(int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), env["SLURM_JOB_ID"], hosts)
    raise BringUpError(
        "a node agent must find its rank in the environment (SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_ID)",
        action="start it through `python -m slurm_rl`, which runs it under srun",
    )
