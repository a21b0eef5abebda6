"""What the partitions of a cluster offer, from one sinfo."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_rl.config.times import parse_minutes
from slurm_rl.launchers.slurm.command_line import run_slurm


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are alike."""

    num_nodes: int
    cpus: int
    mem_mb: int
    gpus: dict[str, int] = field(default_factory=dict)
    """Type -> GPUs a node; "" for GPUs to which the site gave no type."""


@dataclass(frozen=True)
class PartitionInfo:
    """One partition."""

    name: str
    is_default: bool
    is_up: bool
    max_time_min: int | None
    """None when there is no limit."""
    groups: tuple[NodeGroup, ...]


def partitions() -> list[PartitionInfo]:
    """Every partition that this user may see, the default one first."""
    output = run_slurm(["sinfo", "-h", "-e", "-o", "%P|%a|%l|%D|%c|%m|%G"])
    return parse_partitions(output)


def nodes_out_of_service() -> list[str]:
    """Nodes that take no jobs now: down, drained, failing, in maintenance."""
    output = run_slurm(["sinfo", "-h", "-N", "-t", "down,drain,fail,maint,reserved,no_respond", "-o", "%N"])
    return sorted(set(output.split()))


def nodes_down() -> list[str]:
    """Nodes that Slurm has given up, on which nothing can be started; a drained one still runs steps of its jobs."""
    output = run_slurm(["sinfo", "-h", "-N", "-t", "down,no_respond", "-o", "%N"])
    return sorted(set(output.split()))


def active_features(hosts: Sequence[str]) -> dict[str, set[str]]:
    """Slurm features of each of these nodes."""
    output = run_slurm(["sinfo", "-h", "-N", "-n", ",".join(hosts), "-o", "%N|%b"])
    rows = dict(line.split("|", 1) for line in output.splitlines())
    return {host: set(features.split(",")) for host, features in rows.items()}


def parse_partitions(output: str) -> list[PartitionInfo]:
    """Read `sinfo -h -e -o '%P|%a|%l|%D|%c|%m|%G'`: one line per partition and kind of node."""
    lines = [line.split("|") for line in output.splitlines()]
    groups: dict[tuple[str, str, str], list[NodeGroup]] = {}
    for name, up, limit, num_nodes, cpus, mem_mb, gres in lines:
        group = NodeGroup(int(num_nodes), int(cpus), int(mem_mb), parse_gpus(gres))
        groups.setdefault((name, up, limit), []).append(group)
    found = [
        PartitionInfo(name.rstrip("*"), name.endswith("*"), up == "up", _minutes(limit), tuple(alike))
        for (name, up, limit), alike in groups.items()
    ]
    return sorted(found, key=lambda partition: (not partition.is_default, partition.name))


def parse_gpus(gres: str) -> dict[str, int]:
    """GPUs in a node's gres, by type.

    >>> parse_gpus("gpu:a100:4(S:0,1),nvme:1"), parse_gpus("gpu:8"), parse_gpus("(null)")
    ({'a100': 4}, {'': 8}, {})
    """
    found: dict[str, int] = {}
    # The sockets stand in parentheses and may hold commas.
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        match = re.fullmatch(r"gpu(?::([^:]+))??(?::(\d+))?", part.strip())
        if match:
            kind = match[1] or ""
            found[kind] = found.get(kind, 0) + int(match[2] or 1)
    return found


def _minutes(limit: str) -> int | None:
    return None if limit in ("infinite", "n/a") else parse_minutes(limit)
