"""The network interface between the nodes of a run, unless the user chooses it. Standard library only."""

import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping

from slurm_rl.errors import BringUpError
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import JobPlan

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_BACKLOG = 4096
"""All ranks of a large run connect at once."""


def interface_of(address: str) -> str | None:
    """Return the interface with this IPv4 address.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


def _address_of(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def listen_at(address: str, port: int) -> socket.socket | None:
    """Return a socket that listens on this address only; None for a name, or an address that is not local (NAT)."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except ValueError:
        return None  # a name may be loopback here and another address elsewhere (Debian's /etc/hosts)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise


def network_environment(plan: JobPlan, role: NodeRole, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give Gloo, and NCCL without Slurm, the interface to the other nodes.

    By default Gloo uses the address of the host's own name, which is 127.0.1.1 with Debian's /etc/hosts (torch's
    ProcessGroupGloo, `doesHostnameResolveToUsableAddress`). NCCL examines all interfaces, which is right on Slurm.

    Args:
        env: environment of the user and the plan; an interface named there stays.

    Raises:
        BringUpError: this machine has no interface of that name.
    """
    if len(role.hosts) < 2:
        return {}
    named = env.get(GLOO)
    interfaces = [name for _, name in socket.if_nameindex()]
    if named and named not in interfaces:
        raise BringUpError(
            "cluster.network_interface must be an interface of every machine",
            seen=f"{named}; this one has {', '.join(interfaces)}",
            where=os.uname().nodename,
            action="network=auto finds it by the route to the head, or name another",
        )
    found = named or interface_of(own_address(role.hosts[-1] if role.is_head else role.hosts[0]))
    if found is None:
        return {}
    sets_nccl = plan.launcher_entry.by_node and plan.accelerator != "cpu"
    wanted = {GLOO: found} | ({NCCL: found} if sets_nccl else {})
    return {name: value for name, value in wanted.items() if not env.get(name)}
