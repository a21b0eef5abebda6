"""What a GPU can do by its vendor's data sheet, and the part of it that a sound one reaches.

Dense bfloat16 TFLOP/s (sheets of NVIDIA print twice as much, with sparsity) and GB/s that it sends to the others of its
node. NVIDIA: data sheets of A100 (312; NVLink 600 GB/s in both directions together), H100
(SXM 1,979 sparse, NVLink 900; PCIe 1,513; NVL 1,671 a GPU), H200 (as H100), HGX B200 (36 PFLOP/s sparse of 8 GPUs;
NVLink 1,800), L40S (733 sparse). AMD: data sheets of MI210 (181), MI250 (362.1 of two devices) and MI250X (383 of two),
MI300X and MI325X (1,307.4; Infinity Fabric of 128 GB/s in both directions to each of 7 others).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    tflops: float
    well: float
    """The part of `tflops` that a large matmul reaches at the least. Published maxima of such: about 0.7 to 0.8 on
    SXM modules, 0.55 to 0.65 on cards of 350 W, 0.5 to 0.6 on MI300X; these are well below."""
    link_gb_s: float | None = None
    """In one direction, to all others together; None: by PCIe, whose speed is the machine's."""
    peer_gb_s: float | None = None
    """In one direction to each other one, where no switch is between them."""


_PEAKS = (
    (r"B200", Peak(2250, 0.5, 900)),
    (r"H[12]00.*(PCIe|NVL)", Peak(756, 0.35)),
    (r"G?H[12]00", Peak(989, 0.5, 450)),
    (r"A100.*PCIe", Peak(312, 0.5)),
    (r"A100", Peak(312, 0.5, 300)),
    (r"L40S", Peak(362, 0.35)),
    (r"MI3(00|25)X", Peak(1307, 0.3, peer_gb_s=64)),
    (r"MI250X", Peak(191, 0.35)),
    (r"MI2[15]0", Peak(181, 0.35)),
)

LINK_WELL = 0.25
"""Of a link within the node: what falls back to PCIe stays below it, and also two GPUs of a board on which four share
their links pass."""
RDMA_WELL = 0.5
"""Of the rate of a node's ports."""


def find_peak(name: str) -> Peak | None:
    """By the name that the driver has for the GPU; None where it is not known, or a slice of one.

    >>> find_peak("NVIDIA H100 80GB HBM3").link_gb_s, find_peak("NVIDIA H100 PCIe").link_gb_s
    (450, None)
    >>> find_peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None
    True
    """
    if "MIG" in name:
        return None
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)


def least_link_gb_s(name: str, num_gpus: int) -> float | None:
    """Bus bandwidth that an all-reduce over so many of these in one node must reach; None: nobody can say."""
    peak = find_peak(name)
    if peak is None:
        return None
    if peak.peer_gb_s is not None:
        return LINK_WELL * peak.peer_gb_s * (num_gpus - 1)
    return None if peak.link_gb_s is None else LINK_WELL * peak.link_gb_s


def least_rdma_gb_s(rates_gb: list[float], num_gpus: int) -> float | None:
    """The same between nodes, with so many GPUs on each: a GPU may use a port, and the slowest one decides.

    Args:
        rates_gb: gigabits a second of a node's active ports.

    >>> least_rdma_gb_s([400.0] * 8, 8), least_rdma_gb_s([400.0] * 8, 1), least_rdma_gb_s([], 8)
    (200.0, 25.0, None)
    """
    return RDMA_WELL * min(len(rates_gb), num_gpus) * min(rates_gb) / 8 if rates_gb else None


def bus_bandwidth(num_bytes: float, seconds: float, num_ranks: int) -> float:
    """GB/s of an all-reduce, independent of the number of ranks: size / time * 2 (n - 1) / n (NVIDIA/nccl-tests,
    doc/PERFORMANCE.md).

    >>> bus_bandwidth(1e9, 1.0, 8)
    1.75
    """
    return num_bytes / seconds * 2 * (num_ranks - 1) / num_ranks / 1e9
