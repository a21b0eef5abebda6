"""Which network device the nodes of a run talk over, where no user says so. Standard library alone."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.errors import BringUpError
from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import JobPlan

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
# All ranks of a large run come at once.
_BACKLOG = 4096


def interface_of(address: str) -> str | None:
    """The device that has this IPv4 address.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


def _address_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:  # it has none
            return None
    return socket.inet_ntoa(answer[20:24])


def listen_at(address: str, port: int) -> socket.socket | None:
    """A socket that listens on this address alone; None for a name, or an address that a router has for this node.

    Raises:
        OSError: the port is taken.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except ValueError:
        # It may be loopback here and the node's address elsewhere, as Debian writes /etc/hosts.
        return None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise


def network_environment(plan: JobPlan, role: NodeRole, env: Mapping[str, str]) -> dict[str, str]:
    """What tells Gloo, and NCCL on machines without Slurm, the device by which this node reaches the others.

    Gloo takes the address that the host's own name resolves to, if it can be bound (torch's ProcessGroupGloo,
    `doesHostnameResolveToUsableAddress`): by Debian's /etc/hosts that is 127.0.1.1, on any cluster. NCCL looks at all
    devices, and a site's nodes are made for that.

    Args:
        env: what the user exported and the plan sets; a device named there stays.

    Raises:
        BringUpError: this machine has no device of the name.
    """
    if len(role.hosts) < 2:
        return {}
    named = env.get(GLOO)
    devices = [name for _, name in socket.if_nameindex()]
    if named and named not in devices:
        raise BringUpError(
            "cluster.network_interface must be a device of every machine",
            seen=f"{named}; this one has {', '.join(devices)}",
            where=os.uname().nodename,
            action="network=auto finds it by the route to the head, or name another",
        )
    found = named or interface_of(own_address(role.hosts[-1] if role.is_head else role.hosts[0]))
    if found is None:
        return {}
    tells_nccl = LAUNCHERS[plan.launcher].by_node and plan.accelerator != "cpu"
    wanted = {GLOO: found} | ({NCCL: found} if tells_nccl else {})
    return {name: value for name, value in wanted.items() if not env.get(name)}
