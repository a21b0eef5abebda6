"""Partitions of a cluster, parsed from sinfo and scontrol. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_rl.config.gres import parse_gpus
from slurm_rl.launch.slurm.partitions import is_slice, parse_limit

SINFO_FORMAT = "%P|%a|%l|%D|%c|%m|%G|%T|%N|%f"
"""One line for each partition, kind of node and state; every version since 20.11 knows these letters."""
_FIELDS = SINFO_FORMAT.count("|") + 1
# What sinfo appends to a state (man sinfo, NODE STATE CODES). A star is a node that does not answer, a dollar one in a
# maintenance reservation; the others are powered up and down, rebooted, planned for, or still complete a job.
_SUFFIXES = "*~#!%$@^-+"
_TAKES_NO_JOB = frozenset(
    ("down", "drained", "draining", "fail", "failing", "error", "inval", "maint", "future", "unknown", "perfctrs")
)
# Partitions for other things than long runs, by the names that sites give them.
_ASIDE = re.compile(r"debug|test|dev|inter|preempt|scav|spot|short|express|login|viz|visu|jupyter", re.IGNORECASE)
_LEAST_MINUTES = 60


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a partition that are alike."""

    num_nodes: int
    num_usable: int
    """Those that take jobs, now or after the ones they have."""
    cpus: int
    mem_mb: int
    gres: str
    """Name, as Slurm writes it."""
    features: tuple[str, ...]
    nodelist: str
    """Host list, in Slurm's short form."""

    @property
    def gpu_type(self) -> str | None:
        """The type that a node has most of, whole ones before slices; "" where the site gave none, None: no GPU."""
        gpus = parse_gpus(self.gres)
        return max(gpus, key=lambda kind: (not is_slice(kind), gpus[kind]), default=None)

    @property
    def num_gpus(self) -> int:
        """GPUs of that type per node."""
        return parse_gpus(self.gres).get(self.gpu_type or "", 0)


@dataclass(frozen=True)
class Partition:
    """One partition."""

    name: str
    is_default: bool
    is_up: bool
    max_time_min: int | None
    """None when there is no limit."""
    kinds: tuple[NodeKind, ...]
    rules: Mapping[str, str]
    """Fields of `scontrol show partition`; empty if it does not answer."""

    @property
    def kind(self) -> NodeKind:
        """Nodes with the most GPUs in service; without GPUs, the largest group of equal nodes."""
        return max(self.kinds, key=lambda kind: (kind.num_gpus * kind.num_usable, kind.num_gpus, kind.num_nodes))

    @property
    def num_nodes(self) -> int:
        return sum(kind.num_nodes for kind in self.kinds)


def parse_sinfo(output: str) -> list[Partition]:
    """Read `sinfo -h -e -o SINFO_FORMAT`, the default partition first; a line of another shape is passed over.

    >>> [found] = parse_sinfo("gpu*|up|1-00:00:00|3|64|512000|gpu:h100:8|idle|n[1-3]|ib")
    >>> found.name, found.max_time_min, found.kind.num_gpus
    ('gpu', 1440, 8)
    """
    found: dict[str, Partition] = {}
    for fields in (line.split("|", _FIELDS - 1) for line in output.splitlines()):
        numbers = [_parse_count(text) for text in fields[3:6]]
        if len(fields) != _FIELDS or None in numbers:
            continue
        word, is_up, limit, *_, gres, state, nodes, features = fields
        count, cpus, mem_mb = (number or 0 for number in numbers)
        name = word.rstrip("*")
        usable = count if takes_jobs(state) else 0
        kind = NodeKind(count, usable, cpus, mem_mb, gres, _split(features), nodes)
        before = found.get(name)
        kinds = _add(before.kinds if before else (), kind)
        found[name] = Partition(name, word.endswith("*"), is_up == "up", _parse_limit(limit), kinds, {})
    return sorted(found.values(), key=lambda partition: (not partition.is_default, partition.name))


def _add(kinds: tuple[NodeKind, ...], new: NodeKind) -> tuple[NodeKind, ...]:
    """Merge node groups that differ only by state."""
    for index, kind in enumerate(kinds):
        if (kind.cpus, kind.mem_mb, kind.gres, kind.features) == (new.cpus, new.mem_mb, new.gres, new.features):
            both = replace(kind, num_nodes=kind.num_nodes + new.num_nodes, num_usable=kind.num_usable + new.num_usable)
            return (*kinds[:index], both, *kinds[index + 1 :])
    return (*kinds, new)


def takes_jobs(state: str) -> bool:
    """Whether nodes in this state of sinfo's run jobs, or will.

    >>> [takes_jobs(state) for state in ("idle", "mixed-", "idle~", "allocated+", "idle*", "drained", "down*")]
    [True, True, True, True, False, False, False]
    """
    suffix = state[len(state.rstrip(_SUFFIXES)) :]
    return state.rstrip(_SUFFIXES).lower() not in _TAKES_NO_JOB and not set(suffix) & set("*$")


def _parse_count(text: str) -> int | None:
    """sinfo without --exact writes 64+, and thousands may be 1.5K."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(K?)\+?", text.strip())
    return None if found is None else int(float(found[1]) * (1000 if found[2] else 1))


def _parse_limit(text: str) -> int | None:
    try:
        return parse_limit(text)
    except ValueError:
        return None


def _split(features: str) -> tuple[str, ...]:
    return () if features in ("", "(null)") else tuple(features.split(","))


def parse_records(output: str) -> list[dict[str, str]]:
    """Parse `scontrol show partition|node -o`: one record per line, with spaces in values.

    >>> parse_records("NodeName=n1 OS=Linux 6.1 #1 SMP CPUTot=8 Gres=(null)")
    [{'NodeName': 'n1', 'OS': 'Linux 6.1 #1 SMP', 'CPUTot': '8', 'Gres': '(null)'}]
    """
    pattern = re.compile(r"(?:^|\s)([A-Z]\w*)=(.*?)(?=\s+[A-Z]\w*=|\s*$)")
    return [dict(pattern.findall(line)) for line in output.splitlines() if "=" in line]


def with_rules(partitions: Sequence[Partition], records: Sequence[Mapping[str, str]]) -> list[Partition]:
    """Return the partitions with their fields from scontrol."""
    rules = {record.get("PartitionName", ""): record for record in records}
    return [replace(partition, rules=rules.get(partition.name, {})) for partition in partitions]


def is_open_to(partition: Partition, accounts: Sequence[str], groups: Sequence[str]) -> bool:
    """Return whether the rules admit a user with these accounts and Unix groups; unknown rules admit all."""

    def names(key: str) -> set[str]:
        value = partition.rules.get(key, "ALL")
        return set() if value in ("ALL", "(null)", "NONE", "") else set(value.split(","))

    if partition.rules.get("RootOnly") == "YES" or (names("AllowGroups") and not names("AllowGroups") & set(groups)):
        return False
    if accounts and names("AllowAccounts") and not names("AllowAccounts") & set(accounts):
        return False
    return not accounts or not set(accounts) <= names("DenyAccounts")


def rank_partitions(
    partitions: Sequence[Partition], accounts: Sequence[str] = (), groups: Sequence[str] = ()
) -> list[Partition]:
    """The likeliest for long runs on GPUs first; those that are down or closed to the user are left out."""

    def key(partition: Partition) -> tuple[object, ...]:
        kind, limit = partition.kind, partition.max_time_min
        return (
            kind.num_gpus == 0,
            limit is not None and limit < _LEAST_MINUTES,
            not partition.is_default and bool(_ASIDE.search(partition.name)),
            not partition.is_default,
            -kind.num_gpus * kind.num_usable,
            -kind.num_usable,
            partition.name,
        )

    fit = [partition for partition in partitions if partition.is_up and is_open_to(partition, accounts, groups)]
    return sorted(fit, key=key)
