"""Peak performance of GPUs by their data sheets, and the share of it that a healthy GPU reaches.

Dense bfloat16 TFLOP/s (NVIDIA's sheets print twice as much, with sparsity). NVIDIA: A100 (312; NVLink 600 GB/s in both
directions together), H100 (SXM 1,979 sparse, NVLink 900; PCIe 1,513; NVL 1,671 per GPU), H200 (as H100), HGX B200 (36
PFLOP/s sparse of 8 GPUs; NVLink 1,800), L40S (733 sparse). AMD: MI210 (181), MI250 (362.1 of two devices), MI250X (383
of two), MI300X and MI325X (1,307.4; Infinity Fabric of 128 GB/s in both directions to each of 7 others).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Peak performance of one GPU."""

    tflops: float
    least_share: float
    """Share of `tflops` that a large matmul reaches at least. Published maxima: 0.7 to 0.8 on SXM modules, 0.55 to 0.65
    on cards of 350 W, 0.5 to 0.6 on MI300X."""
    link_gb_s: float | None = None
    """GB/s in one direction to all other GPUs together; None for PCIe."""
    peer_gb_s: float | None = None
    """GB/s in one direction to each other GPU, without a switch."""


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
_LINK_SHARE = 0.25
"""Above PCIe as a fallback, below two GPUs of a board on which four share their links."""
_RDMA_SHARE = 0.5


def find_peak(name: str) -> Peak | None:
    """Return the peak by the driver's name of the GPU; None for unknown GPUs and for MIG slices.

    >>> find_peak("NVIDIA H100 80GB HBM3").link_gb_s, find_peak("NVIDIA H100 PCIe").link_gb_s
    (450, None)
    >>> find_peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None
    True
    """
    if "MIG" in name:
        return None
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)


def least_link_gb_s(name: str, num_gpus: int) -> float | None:
    """Return the bus bandwidth that an all-reduce over GPUs of one node must reach; None if unknown."""
    peak = find_peak(name)
    if peak is None:
        return None
    if peak.peer_gb_s is not None:
        return _LINK_SHARE * peak.peer_gb_s * (num_gpus - 1)
    return None if peak.link_gb_s is None else _LINK_SHARE * peak.link_gb_s


def least_rdma_gb_s(rates_gb: list[float], num_gpus: int) -> float | None:
    """Return the bus bandwidth that an all-reduce between nodes must reach, if each GPU uses one port.

    Args:
        rates_gb: rates of a node's active ports in Gb/s.
        num_gpus: GPUs of each node.

    >>> least_rdma_gb_s([400.0] * 8, 8), least_rdma_gb_s([400.0] * 8, 1), least_rdma_gb_s([], 8)
    (200.0, 25.0, None)
    """
    return _RDMA_SHARE * min(len(rates_gb), num_gpus) * min(rates_gb) / 8 if rates_gb else None


def bus_bandwidth(num_bytes: float, seconds: float, num_ranks: int) -> float:
    """Return GB/s of an all-reduce: size / time * 2 (n - 1) / n (NVIDIA/nccl-tests, doc/PERFORMANCE.md).

    >>> bus_bandwidth(1e9, 1.0, 8)
    1.75
    """
    return num_bytes / seconds * 2 * (num_ranks - 1) / num_ranks / 1e9
