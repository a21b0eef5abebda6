"""Which node am I? The sources of sources.py, in their order. Standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slurm_rl.errors import ConfigError
from slurm_rl.node.sources import SOURCES, Flags, NodeIdentity


@dataclass(frozen=True)
class NodeRole:
    """A node's place in an attempt, once all of it is known."""

    rank: int
    num_nodes: int
    job_key: str
    """Names the job on the machine: ports and temp dirs derive from it."""
    hosts: tuple[str, ...] = ()
    """Host names or addresses by rank; empty on a single machine."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0


def discover(env: Mapping[str, str], flags: Flags) -> NodeIdentity:
    """The first source that knows which node this is; single flags win over what it says.

    >>> discover({"RAY_WORKER": "1", "HEAD_POD_ID": "abc"}, Flags(port=7000)).head
    'abc.runpod.internal'

    Raises:
        ConfigError: no source knows, or one contradicts itself; the variable is named.
    """
    for find in SOURCES.values():
        found = find(env, flags)
        if found is not None:
            return replace(
                found,
                num_nodes=found.num_nodes if flags.num_nodes is None else flags.num_nodes,
                port=flags.port or found.port,
                job_key=flags.job_key or found.job_key,
            )
    raise ConfigError(
        "a machine must be told which node of the run it is",
        seen="none of the variables, and no flag",
        action="set one of: " + "; ".join(SOURCES),
    )


def discover_role(env: Mapping[str, str], flags: Flags) -> NodeRole:
    """Of a node agent, whose launcher knows everything.

    Raises:
        ConfigError: nothing says which node this is.
    """
    found = discover(env, flags)
    if found.rank is None or found.num_nodes is None or found.job_key is None:
        raise ConfigError(
            "a node agent must be given its rank, the number of nodes and the job",
            seen=found.source,
            action="start it through `python -m slurm_rl`: submit, here or node",
        )
    return NodeRole(found.rank, found.num_nodes, found.job_key, found.hosts)
