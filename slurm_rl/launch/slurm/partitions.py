"""Facts of a cluster: partitions and nodes (from sinfo), settings, version, and its spelling of a GPU type."""

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from slurm_rl.config.gres import parse_gpus
from slurm_rl.config.job import parse_minutes
from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.command_line import execute_slurm, run_slurm
from slurm_rl.plan.sbatch import SbatchOptions

Version = tuple[int, int]

_DEFAULT_KILL_WAIT_S = 30.0
DEFAULT_MAX_ARRAY_SIZE = 1001
"""Slurm's default, for login nodes without scontrol."""
# A MIG slice contains the name of the GPU.
_SLICE = re.compile(r"\d+g\.\d+gb")


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes of a partition."""

    num_nodes: int
    cpus: int
    mem_mb: int
    gpus: dict[str, int] = field(default_factory=dict)
    """Type -> GPUs per node; "" for GPUs without a type."""


@dataclass(frozen=True)
class PartitionInfo:
    """One partition."""

    name: str
    is_default: bool
    max_time_min: int | None
    """None without a limit."""
    groups: tuple[NodeGroup, ...]


def partitions() -> list[PartitionInfo]:
    """Return the partitions that this user may see, the default one first."""
    output = run_slurm(["sinfo", "-h", "-e", "-o", "%P|%l|%D|%c|%m|%G"])
    return parse_partitions(output)


def nodes_out_of_service() -> list[str]:
    """Return nodes that take no jobs now: down, drained, failing, in maintenance."""
    return _nodes_in("down,drain,fail,maint,reserved,no_respond")


def nodes_down() -> list[str]:
    """Return lost nodes, on which no step can start; drained ones still run steps of their jobs."""
    return _nodes_in("down,no_respond")


def _nodes_in(states: str) -> list[str]:
    return sorted(set(run_slurm(["sinfo", "-h", "-N", "-t", states, "-o", "%N"]).split()))


@dataclass(frozen=True)
class NodeLine:
    """A node of a partition."""

    size: str
    """Cores, memory, GPUs."""
    features: str
    is_in_service: bool


_OUT_OF_SERVICE = re.compile(r"down|drain|fail|maint|unknown|no_respond|power|reboot")


def list_nodes(partition: str | None) -> dict[str, NodeLine]:
    """Return the nodes of one or more partitions (comma-separated), or of all."""
    where = ["-p", partition] if partition else []
    return parse_nodes(run_slurm(["sinfo", "-h", "-N", *where, "-o", "%N|%T|%c|%m|%G|%f"]))


def parse_nodes(output: str) -> dict[str, NodeLine]:
    """Parse `sinfo -h -N -o '%N|%T|%c|%m|%G|%f'`.

    >>> parse_nodes("n1|idle|4|12000|gpu:2|old\\nn2|down*|4|12000|gpu:2|old")["n2"]
    NodeLine(size='4|12000|gpu:2', features='old', is_in_service=False)
    """
    rows = (line.split("|") for line in output.splitlines() if line.count("|") == 5)
    return {
        name: NodeLine("|".join(size), features, not _OUT_OF_SERVICE.search(state) and not state.endswith("*"))
        for name, state, *size, features in rows
    }


def boot_times(hosts: Sequence[str]) -> dict[str, float]:
    """Return the boot times that Slurm reports, in seconds since 1970."""
    # It fails for an unknown name, but reports the other nodes.
    return parse_boot_times(execute_slurm(["scontrol", "show", "node", ",".join(hosts)]).stdout) if hosts else {}


def parse_boot_times(output: str) -> dict[str, float]:
    """Parse `scontrol show node`, which prints local times.

    >>> list(parse_boot_times("NodeName=n1 Arch=x86_64 BootTime=2026-11-22T08:57:21 SlurmdStartTime=None"))
    ['n1']
    """
    found = {}
    for match in re.finditer(r"NodeName=(\S+)(?:(?!NodeName=).)*?BootTime=(\d{4}-\S+)", output, re.DOTALL):
        with contextlib.suppress(ValueError, OverflowError):
            found[match[1]] = time.mktime(time.strptime(match[2], "%Y-%m-%dT%H:%M:%S"))
    return found


def parse_partitions(output: str) -> list[PartitionInfo]:
    """Parse `sinfo -h -e -o '%P|%l|%D|%c|%m|%G'`: one line per partition and kind of node."""
    lines = [line.split("|") for line in output.splitlines()]
    groups: dict[tuple[str, str], list[NodeGroup]] = {}
    for name, limit, num_nodes, cpus, mem_mb, gres in lines:
        group = NodeGroup(int(num_nodes), int(cpus), int(mem_mb), parse_gpus(gres))
        groups.setdefault((name, limit), []).append(group)
    found = [
        PartitionInfo(name.rstrip("*"), name.endswith("*"), parse_limit(limit), tuple(alike))
        for (name, limit), alike in groups.items()
    ]
    return sorted(found, key=lambda partition: (not partition.is_default, partition.name))


def parse_limit(limit: str) -> int | None:
    """Return the minutes of a partition's time limit; None without one.

    >>> parse_limit("infinite"), parse_limit("2-00:00:00")
    (None, 2880)
    """
    return None if limit in ("infinite", "UNLIMITED", "n/a") else parse_minutes(limit)


def spell_gpus(options: SbatchOptions, chosen: Sequence[PartitionInfo]) -> SbatchOptions:
    """Return the options with the partitions' spelling of each GPU type in --gres, if they have it.

    Slurm compares types literally, and each site has its own spelling.
    """
    gres = str(options.get("gres", ""))
    offered = {kind for partition in chosen for group in partition.groups for kind in group.gpus if kind}
    spelled = gres
    for asked in filter(None, parse_gpus(gres)):
        found = find_spelling(asked, offered) or asked
        spelled = re.sub(rf"\bgpu:{re.escape(asked)}(?=[:,]|$)", f"gpu:{found}", spelled)
    return options if spelled == gres else {**options, "gres": spelled}


def is_slice(kind: str) -> bool:
    """Return True for a part of a GPU."""
    return _SLICE.search(kind.lower()) is not None


def find_spelling(asked: str, offered: Collection[str]) -> str | None:
    """Return the only type with the same meaning; None if there is none, or more than one.

    >>> find_spelling("h100", ["H100", "v100"]), find_spelling("h100", ["nvidia_h100_80gb_hbm3", "a100_3g.20gb"])
    ('H100', 'nvidia_h100_80gb_hbm3')
    >>> find_spelling("a100", ["a100_3g.20gb"]), find_spelling("a100", ["a100-40", "a100-80"])
    (None, None)
    """
    if asked in offered:
        return asked
    same = [kind for kind in offered if kind.lower() == asked.lower()]
    whole = [kind for kind in offered if not is_slice(kind)]
    named = [kind for kind in whole if asked.lower() in re.split("[^a-z0-9]+", kind.lower())]
    alike = same or named
    return alike[0] if len(alike) == 1 else None


def kill_wait_s() -> float:
    """Return the seconds between Slurm's SIGTERM and SIGKILL; the default if Slurm does not answer."""
    with contextlib.suppress(SlurmRLError):
        if found := re.match(r"\d+", _config().get("KillWait", "")):
            return float(found[0])
    return _DEFAULT_KILL_WAIT_S


def slurmd_port() -> int | None:
    """Return the port at which srun reaches the nodes, if Slurm reports it."""
    found = re.match(r"\d+", _config().get("SlurmdPort", ""))
    return int(found[0]) if found else None


def max_array_size() -> int:
    """Return the maximal number of elements of an array: MaxArraySize, or the scheduler's own limit."""
    if shutil.which("scontrol") is None:
        return DEFAULT_MAX_ARRAY_SIZE
    config = _config()
    tasks = re.search(r"\bmax_array_tasks=(\d+)", config.get("SchedulerParameters", ""))
    return min(int(config["MaxArraySize"]), int(tasks[1]) if tasks else sys.maxsize)


def slurm_version() -> Version | None:
    """Return the version of Slurm's commands; asks no controller."""
    return parse_version(run_slurm(["sinfo", "--version"]))


def parse_version(text: str) -> Version | None:
    """Return year and month of the output of `sinfo --version`; None without a version.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 25.11.7"), parse_version("slurm")
    ((22, 5), (25, 11), None)
    """
    found = re.search(r"\b(\d+)\.(\d+)\b", text)
    return (int(found[1]), int(found[2])) if found else None


def preempt_mode(partition: str, qos: str) -> str:
    """Return Slurm's PreemptMode for jobs of this partition and QOS; empty if nothing preempts."""
    config = _config()
    mode, kind = config.get("PreemptMode", ""), config.get("PreemptType", "")
    if kind == "preempt/partition_prio":
        shown = run_slurm(["scontrol", "show", "partition", partition])
        found = re.search(r"\bPreemptMode=(\S+)", shown)
        return found[1] if found else mode
    if kind == "preempt/qos":
        shown = execute_slurm(["sacctmgr", "-n", "-P", "show", "qos", qos, "format=PreemptMode"]).stdout.strip()
        return mode if shown.lower() in ("", "cluster") else shown.upper()
    return ""


def _config() -> dict[str, str]:
    return parse_settings(run_slurm(["scontrol", "show", "config"]))


def parse_settings(output: str) -> dict[str, str]:
    """Parse `scontrol show config`.

    >>> parse_settings("Configuration data as of now\\nClusterName             = test\\n")["ClusterName"]
    'test'
    """
    pairs = (line.partition("=") for line in output.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
