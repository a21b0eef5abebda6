"""Infer the network of the nodes from the devices of a login node. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_VIRTUAL = re.compile(
    r"lo|docker.*|podman.*|cni.*|veth.*|virbr.*|br-.*|tap.*|tun.*|dummy.*|bonding_masters|sit\d.*|ip6.*"
)


@dataclass(frozen=True)
class Fabric:
    """Network devices in /sys."""

    interfaces: tuple[str, ...]
    """Interfaces of external networks that are up."""
    adapters: tuple[str, ...]
    """Below /sys/class/infiniband."""


@dataclass(frozen=True)
class Advice:
    """Which preset of conf/network may be meant."""

    preset: str
    why: str


# Adapter or interface -> preset and its other requirements.
_SIGNS = (
    (r"efa_\d+|rdmap\w+", Advice("efa", "AWS EFA; the image needs the aws-ofi-nccl plugin")),
    (r"hsn\d+", Advice("auto", "Slingshot: cluster.network_interface=hsn0, and the image needs an OFI plugin of NCCL")),
    (r"mlx\d_\w+|ib\w+", Advice("ib", "InfiniBand or RoCE; NCCL finds it by itself, +network=ib names it")),
    (r"irdma\d+|bnxt_re\w*|rocep?\w+", Advice("auto", "RoCE; NCCL finds it by itself")),
)


def read_fabric(names: Sequence[tuple[str, bool]], adapters: Sequence[str]) -> Fabric:
    """Return the devices without virtual and loopback ones.

    Args:
        names: entries of /sys/class/net, and whether each is up.
        adapters: entries of /sys/class/infiniband.

    >>> read_fabric([("lo", True), ("ib0", True), ("eno2", False)], ["mlx5_0"])
    Fabric(interfaces=('ib0',), adapters=('mlx5_0',))
    """
    up = sorted(name for name, is_up in names if is_up and not _VIRTUAL.fullmatch(name))
    return Fabric(tuple(up), tuple(sorted(adapters)))


def advise(fabric: Fabric) -> Advice | None:
    """Return the advice for the fastest device; None if there is only Ethernet.

    >>> advise(Fabric(("eth0", "hsn0"), ())).preset, advise(Fabric(("eno1",), ()))
    ('auto', None)
    """
    seen = [*fabric.adapters, *fabric.interfaces]
    return next((advice for pattern, advice in _SIGNS if any(re.fullmatch(pattern, name) for name in seen)), None)
