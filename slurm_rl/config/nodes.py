"""Which nodes a run takes: of how many kinds, and how close to each other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slurm_rl.config.section import NonNegativeInt, PositiveFloat, PositiveInt, Section
from slurm_rl.config.text import OneLine


class NodeKindConfig(Section):
    """Nodes of one kind, where a run has several: one component of a heterogeneous job. null: as `cluster` has it."""

    count: PositiveInt = 1
    """Nodes of this kind."""
    gpus_per_node: NonNegativeInt | None = None
    """GPUs taken on each of them; 0 for nodes without."""
    gpu_type: OneLine | None = None
    """Slurm's name of their GPU type."""
    gpu_mem_gb: PositiveFloat | None = None
    """Memory of one of their GPUs in GB (10^9 bytes), for the estimate of what fits."""
    cpus_per_node: PositiveInt | None = None
    """CPU cores taken on each of them."""
    mem_gb_per_node: PositiveInt | Literal["all"] | None = None
    """Memory of each of them for the job, in GB as Slurm counts them, or all."""
    partition: OneLine | None = None
    """--partition of these nodes."""
    constraint: OneLine | None = None
    """--constraint of these nodes; null: the kind's name, which is then a Slurm feature, unless a GPU type or a
    partition of their own tells them apart."""

    @property
    def is_told_apart(self) -> bool:
        """Whether Slurm finds these nodes by something else than a feature."""
        return self.gpu_type is not None or self.partition is not None


class TopologyConfig(Section):
    """How close to each other the nodes of a job stand, in the terms of the cluster's own switches or blocks."""

    segment: PositiveInt | None = None
    """--segment: nodes come in groups of so many, each within one block (Slurm 24.05 and later, topology/block)."""
    switches: Annotated[OneLine, Field(pattern=r"^[1-9]\d*(@[0-9:-]+)?$")] | None = None
    """--switches: at most so many leaf switches, and how long to wait for that: 1@10:00 (topology/tree)."""
