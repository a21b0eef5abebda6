"""Network of a cluster: one bridge on the machine, one namespace with one address per node.

The bridge makes plain shells on the machine login nodes: srun and sbatch reach every node.
"""

import subprocess
from pathlib import Path

from tests.slurm.cluster.packages import ClusterError
from tests.slurm.cluster.slots import Slot


def build_network(slot: Slot, num_nodes: int) -> None:
    _ip("link", "add", slot.bridge, "type", "bridge")
    _ip("addr", "add", f"{slot.controller_ip}/24", "dev", slot.bridge)
    _ip("link", "set", slot.bridge, "up")
    for index in range(1, num_nodes + 1):
        _build_node(slot, index)


def _build_node(slot: Slot, index: int) -> None:
    namespace = slot.namespace(slot.node(index))
    veth = f"{namespace}-v"
    _ip("netns", "add", namespace)
    _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    _ip("link", "set", veth, "master", slot.bridge, "up")
    _ip("-n", namespace, "addr", "add", f"{slot.ip(index)}/24", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "eth0", "up")
    _ip("-n", namespace, "link", "set", "lo", "up")


def remove_network(slot: Slot) -> None:
    """Remove every interface and namespace of this slot."""
    # Interfaces first: those of a dying namespace remain for a moment and block their names.
    for path in Path("/sys/class/net").glob(f"{slot.namespace(slot.letter)}*"):
        try:
            _ip("link", "del", path.name)
        except ClusterError:
            if path.exists():  # may have been removed with its namespace
                raise
    for path in Path("/run/netns").glob(f"{slot.namespace(slot.letter)}*"):
        _ip("netns", "del", path.name)


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"ip {' '.join(args)} failed: {done.stderr.strip()}")
