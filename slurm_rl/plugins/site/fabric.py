"""The network devices of a login node, and what they tell of the nodes'. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_VIRTUAL = re.compile(
    r"lo|docker.*|podman.*|cni.*|veth.*|virbr.*|br-.*|tap.*|tun.*|dummy.*|bonding_masters|sit\d.*|ip6.*"
)


@dataclass(frozen=True)
class Fabric:
    """What /sys names."""

    interfaces: tuple[str, ...]
    """Of a network outside this machine, those that are up."""
    adapters: tuple[str, ...]
    """Below /sys/class/infiniband."""


@dataclass(frozen=True)
class Advice:
    """Which preset of conf/network may be meant."""

    preset: str
    why: str


# Adapter or interface -> preset, and what else it needs.
_SIGNS = (
    (r"efa_\d+|rdmap\w+", Advice("efa", "AWS EFA; the image needs the aws-ofi-nccl plugin")),
    (r"hsn\d+", Advice("auto", "Slingshot: cluster.network_interface=hsn0, and the image needs an OFI plugin of NCCL")),
    (r"mlx\d_\w+|ib\w+", Advice("ib", "InfiniBand or RoCE; NCCL finds it by itself, +network=ib names it")),
    (r"irdma\d+|bnxt_re\w*|rocep?\w+", Advice("auto", "RoCE; NCCL finds it by itself")),
)


def read_fabric(names: Sequence[tuple[str, bool]], adapters: Sequence[str]) -> Fabric:
    """Without what only this machine has.

    Args:
        names: of /sys/class/net, with whether each is up.
        adapters: of /sys/class/infiniband.

    >>> read_fabric([("lo", True), ("ib0", True), ("eno2", False)], ["mlx5_0"])
    Fabric(interfaces=('ib0',), adapters=('mlx5_0',))
    """
    up = sorted(name for name, is_up in names if is_up and not _VIRTUAL.fullmatch(name))
    return Fabric(tuple(up), tuple(sorted(adapters)))


def advise(fabric: Fabric) -> Advice | None:
    """What the fastest of the devices says; None where there is Ethernet alone.

    >>> advise(Fabric(("eth0", "hsn0"), ())).preset, advise(Fabric(("eno1",), ()))
    ('auto', None)
    """
    seen = [*fabric.adapters, *fabric.interfaces]
    return next((advice for pattern, advice in _SIGNS if any(re.fullmatch(pattern, name) for name in seen)), None)
