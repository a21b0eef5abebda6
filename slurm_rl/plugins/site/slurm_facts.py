"""Partitions, accounts and QOS of a cluster, parsed from sinfo, scontrol and sacctmgr. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_rl.config.gres import parse_gpus
from slurm_rl.launch.slurm.partitions import is_slice, parse_limit

SINFO_FORMAT = "%P|%a|%l|%D|%c|%m|%G|%T|%f"
"""One line per partition, kind of node and state; supported by every Slurm since 20.11."""
SACCTMGR_FORMAT = "DefaultAccount,Account,Partition,QOS,DefaultQOS"
"""Columns of `sacctmgr -nP show user <name> withassoc`."""
# Suffixes of a state (man sinfo, NODE STATE CODES). `*`: the node does not answer; `$`: maintenance reservation.
_SUFFIXES = "*~#!%$@^-+"
_OUT_OF_SERVICE = frozenset(
    ("down", "drained", "draining", "fail", "failing", "error", "inval", "maint", "future", "unknown", "perfctrs")
)
# Usual names of partitions that are not for long runs.
_ASIDE = re.compile(r"debug|test|dev|inter|preempt|scav|spot|short|express|login|viz|visu|jupyter", re.IGNORECASE)
_LEAST_MINUTES = 60


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
    rules: Mapping[str, str] = field(default_factory=dict)
    """Fields of `scontrol show partition`; empty if it does not answer."""

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
        numbers = [_parse_count(text) for text in fields[3:6]]
        if len(fields) <= SINFO_FORMAT.count("|") or None in numbers:
            continue
        word, up, limit, *_, gres, state, features = fields
        count, cpus, mem_mb = (number or 0 for number in numbers)
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


def _parse_count(text: str) -> int | None:
    """Parse a count of sinfo, which may be 64+ (without --exact) or 1.5K."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(K?)\+?", text.strip())
    return None if found is None else int(float(found[1]) * (1000 if found[2] else 1))


def _parse_limit(text: str) -> int | None:
    try:
        return parse_limit(text)
    except ValueError:
        return None


def parse_records(output: str) -> list[dict[str, str]]:
    """Parse `scontrol show partition -o`: one record per line, with spaces in values.

    >>> parse_records("NodeName=n1 OS=Linux 6.1 #1 SMP CPUTot=8 Gres=(null)")
    [{'NodeName': 'n1', 'OS': 'Linux 6.1 #1 SMP', 'CPUTot': '8', 'Gres': '(null)'}]
    """
    pattern = re.compile(r"(?:^|\s)([A-Z]\w*)=(.*?)(?=\s+[A-Z]\w*=|\s*$)")
    return [dict(pattern.findall(line)) for line in output.splitlines() if "=" in line]


def rank_partitions(
    partitions: Sequence[Partition], accounts: Sequence[str] = (), groups: Sequence[str] = ()
) -> list[Partition]:
    """Return the partitions open to the user, the likeliest for long runs on GPUs first."""

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

    return sorted((one for one in partitions if one.is_up and _is_open_to(one, accounts, groups)), key=key)


def _is_open_to(partition: Partition, accounts: Sequence[str], groups: Sequence[str]) -> bool:
    """Return whether the rules admit a user with these accounts and Unix groups; unknown rules admit all."""

    def names(key: str) -> set[str]:
        value = partition.rules.get(key, "ALL")
        return set() if value in ("ALL", "(null)", "NONE", "") else set(value.split(","))

    if partition.rules.get("RootOnly") == "YES" or (names("AllowGroups") and not names("AllowGroups") & set(groups)):
        return False
    if accounts and names("AllowAccounts") and not names("AllowAccounts") & set(accounts):
        return False
    return not accounts or not set(accounts) <= names("DenyAccounts")


@dataclass(frozen=True)
class Association:
    """An account that the user may charge."""

    account: str
    is_default: bool
    partition: str | None
    """Partition to which it is limited; None for all."""
    qos: tuple[str, ...]
    default_qos: str | None


def parse_associations(output: str) -> list[Association]:
    """Parse the output of sacctmgr, the default account first; other lines are skipped.

    >>> parse_associations("lab|lab||normal,long|normal\\nlab|other|gpu|normal|\\n")[1]
    Association(account='other', is_default=False, partition='gpu', qos=('normal',), default_qos=None)
    """
    rows = [line.split("|") for line in output.splitlines()]
    found = [
        Association(account, account == default, partition or None, tuple(filter(None, qos.split(","))), first or None)
        for default, account, partition, qos, first in (row for row in rows if len(row) == 5)
        if account
    ]
    return sorted(found, key=lambda one: not one.is_default)


def list_accounts(associations: Sequence[Association], partition: str | None = None) -> list[str]:
    """Return the accounts that are valid in a partition, or in any; the default one first."""
    fit = [one for one in associations if partition is None or one.partition in (None, partition)]
    return list(dict.fromkeys(one.account for one in fit))


def choose_qos(associations: Sequence[Association], account: str | None, allowed: str) -> str | None:
    """Return the QOS to request if the partition does not take the default one, else None.

    Args:
        allowed: AllowQos of the partition.

    >>> one = Association("lab", True, None, ("normal", "gpu"), "normal")
    >>> choose_qos([one], "lab", "gpu,long"), choose_qos([one], "lab", "ALL")
    ('gpu', None)
    """
    names = set() if allowed in ("ALL", "(null)", "") else set(allowed.split(","))
    own = [qos for one in associations if one.account == account for qos in one.qos]
    default = next((one.default_qos for one in associations if one.account == account and one.default_qos), None)
    if not names or default in names or (default is None and "normal" in names):
        return None
    return next((qos for qos in own if qos in names), None)
