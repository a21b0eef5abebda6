"""Partitions of a cluster, parsed from sinfo. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_rl.config.gres import parse_gpus
from slurm_rl.launch.slurm.partitions import is_slice, parse_limit

SINFO_FORMAT = "%P|%a|%l|%D|%c|%m|%G|%T|%f"
"""One line per partition, kind of node and state, with exact numbers by -e."""
# Suffixes of a state (man sinfo, NODE STATE CODES). `*`: the node does not answer; `$`: maintenance reservation.
_SUFFIXES = "*~#!%$@^-+"
_OUT_OF_SERVICE = frozenset(
    ("down", "drained", "draining", "fail", "failing", "error", "inval", "maint", "future", "unknown", "perfctrs")
)
# Usual names of partitions that are not for long runs.
_SHORT = re.compile(r"debug|test|dev|inter|preempt|scav|spot|short|express|login|viz|visu|jupyter", re.IGNORECASE)


@dataclass
class NodeKind:
    """Equal nodes of a partition."""

    cpus: int
    mem_mb: int
    gres: str
    features: tuple[str, ...]
    num_nodes: int = field(default=0, compare=False)
    num_usable: int = field(default=0, compare=False)
    """Number of nodes that take jobs, now or after their current ones."""

    @property
    def gpu_type(self) -> str | None:
        """The most frequent GPU type of a node, whole GPUs before slices; "" without a type, None without GPUs."""
        gpus = parse_gpus(self.gres)
        return max(gpus, key=lambda kind: (not is_slice(kind), gpus[kind]), default=None)

    @property
    def num_gpus(self) -> int:
        """GPUs of that type per node."""
        return parse_gpus(self.gres).get(self.gpu_type or "", 0)


@dataclass
class Partition:
    """One partition."""

    name: str
    is_default: bool
    is_up: bool
    max_time_min: int | None
    """None without a limit."""
    kinds: list[NodeKind] = field(default_factory=list)

    @property
    def kind(self) -> NodeKind:
        """Nodes with the most GPUs in service; without GPUs, the largest group of equal nodes."""
        return max(self.kinds, key=lambda kind: (kind.num_gpus * kind.num_usable, kind.num_gpus, kind.num_nodes))


def parse_sinfo(output: str) -> list[Partition]:
    """Parse `sinfo -h -e -o SINFO_FORMAT`, the default partition first; other lines are skipped.

    >>> [found] = parse_sinfo("gpu*|up|1-00:00:00|3|64|512000|gpu:h100:8|idle|ib")
    >>> found.name, found.max_time_min, found.kind.num_gpus
    ('gpu', 1440, 8)
    """
    found: dict[str, Partition] = {}
    for fields in (line.split("|", SINFO_FORMAT.count("|")) for line in output.splitlines()):
        if len(fields) <= SINFO_FORMAT.count("|") or not all(text.isdecimal() for text in fields[3:6]):
            continue
        word, up, limit, *_, gres, state, features = fields
        count, cpus, mem_mb = map(int, fields[3:6])
        name = word.rstrip("*")
        partition = found.setdefault(name, Partition(name, word.endswith("*"), up == "up", _parse_limit(limit)))
        kind = NodeKind(cpus, mem_mb, gres, () if features in ("", "(null)") else tuple(features.split(",")))
        if kind not in partition.kinds:
            partition.kinds.append(kind)
        kind = partition.kinds[partition.kinds.index(kind)]
        kind.num_nodes += count
        kind.num_usable += count if takes_jobs(state) else 0
    return sorted(found.values(), key=lambda partition: (not partition.is_default, partition.name))


def takes_jobs(state: str) -> bool:
    """Return whether nodes in this state of sinfo run jobs, or will.

    >>> [takes_jobs(state) for state in ("idle", "mixed-", "idle~", "allocated+", "idle*", "drained", "down*")]
    [True, True, True, True, False, False, False]
    """
    name = state.rstrip(_SUFFIXES)
    return name.lower() not in _OUT_OF_SERVICE and not set(state[len(name) :]) & set("*$")


def _parse_limit(text: str) -> int | None:
    try:
        return parse_limit(text)
    except ValueError:
        return None


def rank_partitions(partitions: Sequence[Partition]) -> list[Partition]:
    """Return the partitions that are up, the likeliest for long runs on GPUs first."""

    def key(partition: Partition) -> tuple[object, ...]:
        kind = partition.kind
        is_short = not partition.is_default and bool(_SHORT.search(partition.name))
        return (kind.num_gpus == 0, is_short, not partition.is_default, -kind.num_gpus * kind.num_usable)

    return sorted((one for one in partitions if one.is_up), key=key)
