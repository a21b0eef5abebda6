"""Peak performance of GPUs by their data sheets, and the share of it that a healthy GPU reaches.

Dense bfloat16 TFLOP/s (NVIDIA's sheets print twice as much, with sparsity). NVIDIA: A100 (312), H100 (SXM 1,979 sparse;
PCIe 1,513; NVL 1,671 per GPU), H200 (as H100), HGX B200 (36 PFLOP/s sparse of 8 GPUs), L40S (733 sparse). AMD: MI210
(181), MI250 (362.1 of two devices), MI250X (383 of two), MI300X and MI325X (1,307.4).
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Peak performance of one GPU."""

    tflops: float
    least_share: float
    """Share of `tflops` that a large matmul reaches at least. Published maxima: 0.7 to 0.8 on SXM modules, 0.55 to 0.65
    on cards of 350 W, 0.5 to 0.6 on MI300X."""


_PEAKS = (
    (r"B200", Peak(2250, 0.5)),
    (r"H[12]00.*(PCIe|NVL)", Peak(756, 0.35)),
    (r"G?H[12]00", Peak(989, 0.5)),
    (r"A100", Peak(312, 0.5)),
    (r"L40S", Peak(362, 0.35)),
    (r"MI3(00|25)X", Peak(1307, 0.3)),
    (r"MI250X", Peak(191, 0.35)),
    (r"MI2[15]0", Peak(181, 0.35)),
)


def find_peak(name: str) -> Peak | None:
    """Return the peak by the driver's name of the GPU; None for unknown GPUs and for MIG slices.

    >>> find_peak("NVIDIA H100 80GB HBM3").tflops, find_peak("NVIDIA H100 PCIe").tflops
    (989, 756)
    >>> find_peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None
    True
    """
    if "MIG" in name:
        return None
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)


def bus_bandwidth(num_bytes: float, seconds: float, num_ranks: int) -> float:
    """Return GB/s of an all-reduce: size / time * 2 (n - 1) / n (NVIDIA/nccl-tests, doc/PERFORMANCE.md).

    >>> bus_bandwidth(1e9, 1.0, 8)
    1.75
    """
    return num_bytes / seconds * 2 * (num_ranks - 1) / num_ranks / 1e9
