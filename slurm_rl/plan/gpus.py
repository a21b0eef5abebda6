"""Speed of GPUs by name, for the estimate of a step's time; gpus.csv has the source of each row."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_rl.plan.node_groups import groups_for

if TYPE_CHECKING:  # the node agent has no pydantic
    from slurm_rl.config.run import RunConfig


@dataclass(frozen=True)
class Gpu:
    """Peak rates of one GPU, and the shares of them that large kernels reach."""

    name: str
    pattern: str
    """Regular expression for Slurm's or the driver's name, in lower case."""
    vendor: str
    mem_gb: float
    bandwidth_gb_s: float
    """Memory bandwidth."""
    tflops: float
    """Dense bfloat16 TFLOP/s."""
    link_gb_s: float
    """GB/s to the other GPUs of a node, in one direction."""
    network_gb_s: float
    """GB/s to other nodes, this GPU's share of the node's adapters, in one direction."""
    train_share: float
    """Share of `tflops` that training reaches with large micro-batches."""
    read_share: float
    """Share of the bandwidth that decoding reaches."""
    source: str


@functools.cache
def load_gpus() -> tuple[Gpu, ...]:
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    words = ("name", "pattern", "vendor", "source")
    rows = csv.DictReader(text.splitlines())
    return tuple(Gpu(**{key: value if key in words else float(value) for key, value in row.items()}) for row in rows)  # type: ignore[arg-type]


def find_gpu(config: RunConfig, role: str) -> Gpu:
    """Return the GPU of a role by its name, else by vendor and the nearest memory size."""
    cluster, groups = config.cluster, groups_for(config, role)
    names = [cluster.gpu_type, cluster.detected]
    names += [name for group in groups for name in (group.name, cluster.nodes[group.name].gpu_type)]
    sizes = [size for size in (cluster.gpu_mem_gb, *(group.gpu_mem_gb for group in groups)) if size is not None]
    text, size = " ".join(filter(None, names)).lower(), min(sizes, default=80.0)
    known = [gpu for gpu in load_gpus() if gpu.vendor == cluster.accelerator] or list(load_gpus())
    named = [gpu for gpu in known if re.search(gpu.pattern, text)]
    return min(named or known, key=lambda gpu: abs(gpu.mem_gb - size))
