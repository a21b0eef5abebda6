"""Which nodes stand close to each other, as Slurm tells it, and the order of ranks that follows from that.

Ranks that work together most have numbers that follow each other: shards of one copy of the model, GPUs of one engine.
So nodes of one leaf switch, or of one block, get numbers that follow each other, and where there are more nodes than
the run needs, those are left over that have the fewest neighbours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.command_line import run_slurm

Topology = Mapping[str, tuple[str, ...]]
"""Host -> the switches or blocks that it is in, the largest first."""


def read_topology() -> Topology:
    """Of the whole cluster; empty where Slurm has none, or does not answer: the order of ranks is no reason to fail."""
    try:
        return parse_topology(run_slurm(["scontrol", "show", "topology"]))
    except SlurmRLError:
        return {}


def parse_topology(output: str) -> dict[str, tuple[str, ...]]:
    """Read `scontrol show topology`, of the plugins tree and block alike: a line for each switch or block.

    >>> lines = "SwitchName=s1 Level=0 Nodes=n[1-2]\\nSwitchName=top Level=1 Nodes=n[1-3] Switches=s1\\n"
    >>> parse_topology(lines)
    {'n1': ('top', 's1'), 'n2': ('top', 's1'), 'n3': ('top',)}
    """
    groups: dict[str, list[str]] = {}
    for line in output.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = fields.get("SwitchName") or fields.get("BlockName") or fields.get("AggregatedBlock")
        if name and fields.get("Nodes"):
            groups[name] = unfold_hosts(fields["Nodes"])
    ordered = sorted(groups, key=lambda name: -len(groups[name]))
    found: dict[str, tuple[str, ...]] = {}
    for name in ordered:
        for host in groups[name]:
            found[host] = (*found.get(host, ()), name)
    return found


def order_by_topology(hosts: Sequence[str], topology: Topology) -> list[str]:
    """The same hosts, neighbours beside each other, full switches or blocks first; else in the order they had.

    >>> topology = {"n1": ("b1",), "n2": ("b1",), "n3": ("b2",), "n4": ("b2",)}
    >>> order_by_topology(["n1", "n3", "n4"], topology)
    ['n3', 'n4', 'n1']
    """
    prefixes = {
        host: [topology.get(host, ())[:end] for end in range(1, len(topology.get(host, ())) + 1)] for host in hosts
    }
    sizes = Counter(prefix for host in hosts for prefix in prefixes[host])
    first: dict[tuple[str, ...], int] = {}
    for place, host in enumerate(hosts):
        for prefix in prefixes[host]:
            first.setdefault(prefix, place)

    def key(host: str) -> list[tuple[int, int]]:
        return [*((-sizes[prefix], first[prefix]) for prefix in prefixes[host]), (0, hosts.index(host))]

    return sorted(hosts, key=key)


def unfold_hosts(short: str) -> list[str]:
    """Slurm's short form unfolded without asking Slurm, for a cluster of thousands of nodes.

    >>> unfold_hosts("n[08-10,12],10.140.71.103,r[1-2]s[1-2]")
    ['n08', 'n09', 'n10', 'n12', '10.140.71.103', 'r1s1', 'r1s2', 'r2s1', 'r2s2']
    """
    return [host for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", short) for host in _unfold(part)]


def _unfold(part: str) -> list[str]:
    found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if found is None:
        return [part]
    numbers = [number for piece in found[2].split(",") for number in _count(piece)]
    return [f"{found[1]}{number}{rest}" for number in numbers for rest in _unfold(found[3])]


def _count(piece: str) -> list[str]:
    first, _, last = piece.partition("-")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
